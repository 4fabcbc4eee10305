from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.layers.linear import Linear
from engine.layers.mlp import GatedMLP
from engine.layers.moe import MixtureMLP

HIDDEN, WIDTH, COUNT = 32, 64, 6


def make() -> tuple[Tensor, list[GatedMLP]]:
    experts = [
        GatedMLP(Linear(torch.randn(2 * WIDTH, HIDDEN) / 6), Linear(torch.randn(HIDDEN, WIDTH) / 8))
        for _ in range(COUNT)
    ]
    return torch.randn(COUNT, HIDDEN), experts


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("rows", "top"), [(1, 2), (1, 6), (9, 1), (40, 3)])
def test_each_token_is_the_weighted_sum_of_its_experts(rows: int, top: int, normalise: bool) -> None:
    router, experts = make()
    x = torch.randn(rows, HIDDEN)
    out = MixtureMLP(router, experts, top, normalise)(x)
    chances = torch.softmax(x @ router.T, -1)
    for t in range(rows):
        best = chances[t].topk(top)
        weights = best.values / (best.values.sum() if normalise else 1)
        expected = sum(
            weight * experts[int(e)](x[t : t + 1])[0] for weight, e in zip(weights, best.indices, strict=True)
        )
        torch.testing.assert_close(out[t], expected, rtol=1e-4, atol=1e-5)


def test_a_token_is_the_same_to_the_bit_whoever_shares_the_step() -> None:
    mixture = MixtureMLP(*make(), 3, True)
    x = torch.randn(50, HIDDEN)
    whole = mixture(x)
    for rows in (slice(0, 1), slice(11, 12), slice(7, 10), slice(3, 36)):
        assert torch.equal(mixture(x[rows]), whole[rows])


def test_each_expert_in_use_runs_once() -> None:
    router, _ = make()
    calls: list[int] = []

    def counted(i: int) -> GatedMLP:
        def down(x: Tensor) -> Tensor:
            calls.append(i)
            return torch.zeros(len(x), HIDDEN)

        return GatedMLP(Linear(torch.zeros(2 * WIDTH, HIDDEN)), down)

    x = torch.randn(30, HIDDEN)
    MixtureMLP(router, [counted(i) for i in range(COUNT)], 2, False)(x)
    assert calls == sorted(set((x @ router.T).topk(2).indices.flatten().tolist()))
