from __future__ import annotations

import pytest
import torch

from kernels.route import group, route


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
