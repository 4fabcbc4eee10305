from __future__ import annotations

import pytest
import torch

from kernels.route import CorrectedRouting, GroupRouting, SparseMixer, group, route


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("count", "top"), [(1, 1), (5, 2), (8, 8)])
def test_the_likeliest_experts_are_chosen(count: int, top: int, normalise: bool) -> None:
    scores = torch.randn(7, count)
    experts, weights = route(scores, top, normalise)
    for t in range(7):
        chances = torch.softmax(scores[t].double(), 0)
        best = sorted(range(count), key=lambda e: -chances[e])[:top]
        assert experts[t].tolist() == best
        expected = chances[best] / (chances[best].sum() if normalise else 1)
        torch.testing.assert_close(weights[t].double(), expected, rtol=1e-5, atol=1e-6)


def test_weights_have_the_dtype_of_the_scores() -> None:
    assert route(torch.randn(2, 4).bfloat16(), 2, True)[1].dtype == torch.bfloat16


def test_groups_hold_each_choice_once_and_only_experts_in_use() -> None:
    experts = torch.tensor([[4, 1], [1, 0], [4, 7], [7, 4]])
    found = {
        expert: list(zip(rows.tolist(), places.tolist(), strict=True))
        for expert, rows, places in group(experts)
    }
    assert list(found) == [0, 1, 4, 7]
    assert found == {
        0: [(1, 1)],
        1: [(0, 1), (1, 0)],
        4: [(0, 0), (2, 0), (3, 1)],
        7: [(2, 1), (3, 0)],
    }


def test_a_bias_changes_which_experts_are_chosen_and_not_their_weights() -> None:
    chances = torch.tensor([[0.5, 0.3, 0.15, 0.05]])
    bias = torch.tensor([-1.0, 0.0, 0.0, 0.2])
    experts, weights = CorrectedRouting()(chances.log(), bias, 2, True)
    assert experts.tolist() == [[1, 3]]
    torch.testing.assert_close(weights, torch.tensor([[0.3 / 0.35, 0.05 / 0.35]]))
    _, weights = CorrectedRouting(least=0.5)(chances.log(), bias, 2, True)
    torch.testing.assert_close(weights, torch.tensor([[0.6, 0.1]]))


def test_experts_are_chosen_in_the_groups_that_have_the_likeliest() -> None:
    chances = torch.tensor([[0.3, 0.02, 0.15, 0.14, 0.25, 0.01, 0.1, 0.03]])
    # Groups of two, of which those of experts 0 and 4 have the likeliest.
    experts, weights = GroupRouting(4, 2, 16.0)(chances.log(), 3, False)
    assert experts.tolist() == [[0, 4, 1]]
    torch.testing.assert_close(weights, 16 * chances[:, [0, 4, 1]])
    experts, weights = GroupRouting()(chances.log(), 3, True)
    assert experts.tolist() == [[0, 4, 2]]
    torch.testing.assert_close(weights, chances[:, [0, 4, 2]] / 0.7)


def test_sparse_mixer_weighs_each_expert_against_those_that_are_near() -> None:
    scores = torch.tensor([[2.0, 1.9, 0.5, 1.85], [2.0, 1.0, 0.5, 0.9]])
    experts, weights = SparseMixer(jitter=0.04)(scores, 2, False)
    assert experts.tolist() == [[0, 1], [0, 1]]
    first = torch.softmax(torch.tensor([2.0, 1.9, 1.85]), 0)[0]
    second = torch.softmax(torch.tensor([1.9, 1.85]), 0)[0]
    torch.testing.assert_close(weights[0], torch.stack([first, second]))
    assert weights[1].tolist() == [1.0, 1.0]
