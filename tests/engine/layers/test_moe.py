from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.layers.linear import Linear
from engine.layers.mlp import GatedMLP
from engine.layers.moe import MixtureMLP
from engine.layers.row_parallel import RowParallelLinear
from engine.parallel.group import TPGroup
from tests.engine.models.hub import Paged, expected, save

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


class TestOnTriton:
    """In its interpreter."""

    @pytest.fixture(autouse=True)
    def forced(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("triton", reason="triton is installed on Linux alone")
        monkeypatch.setattr("kernels.launch.path", lambda: "triton")

    @pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
    @pytest.mark.parametrize(("rows", "top"), [(1, 2), (9, 1), (20, 3)])
    def test_all_experts_at_once_say_what_each_alone_says(
        self, rows: int, top: int, activation: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        router, weights = torch.randn(COUNT, HIDDEN), random_weights()
        mixture = MixtureMLP(router, made(weights, activation), top, True)
        assert [stack.shape for stack in mixture._stacks or []] == [
            (COUNT, 2 * WIDTH, HIDDEN),
            (COUNT, HIDDEN, WIDTH),
        ]
        x = torch.randn(rows, HIDDEN)
        found = mixture(x)
        # The loop over what was moved, and over what never was.
        monkeypatch.setattr("kernels.launch.path", lambda: "reference")
        mixture._stacks = None
        torch.testing.assert_close(found, mixture(x), rtol=1e-4, atol=1e-5)
        loop = MixtureMLP(router, list(made(weights, activation)), top, True)
        assert loop._stacks is None
        torch.testing.assert_close(found, loop(x), rtol=1e-4, atol=1e-5)

    def test_a_weight_is_held_once(self) -> None:
        mixture = MixtureMLP(torch.randn(COUNT, HIDDEN), made(random_weights()), 2, True)
        assert mixture._stacks is not None
        for i, expert in enumerate(mixture._experts):
            for layer, stack in zip((expert.gate_up, expert.down), mixture._stacks, strict=True):
                assert isinstance(layer, Linear)
                assert layer.weight.data_ptr() == stack[i].data_ptr()

    @pytest.mark.parametrize("strange", [0, 2, COUNT - 1])
    def test_one_expert_of_another_kind_leaves_the_loop(
        self, strange: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        router, weights = torch.randn(COUNT, HIDDEN), random_weights()
        experts = list(made(weights))
        plain = experts[strange].down
        experts[strange].down = lambda x: plain(x)
        mixture = MixtureMLP(router, experts, 2, True)
        assert mixture._stacks is None
        x = torch.randn(5, HIDDEN)
        expected = MixtureMLP(router, made(weights), 2, True)(x)
        torch.testing.assert_close(mixture(x), expected, rtol=1e-4, atol=1e-5)

    def test_ranks_sum_the_mixture_once(self) -> None:
        class Twin(TPGroup):
            calls = 0

            def all_reduce(self, x: Tensor) -> Tensor:
                self.calls += 1
                return 2 * x

        router, weights, tp = torch.randn(COUNT, HIDDEN), random_weights(), Twin()
        experts = list(made(weights))
        for expert in experts:
            expert.down = RowParallelLinear(expert.down, tp)
        x = torch.randn(5, HIDDEN)
        found = MixtureMLP(router, experts, 2, True)(x)
        assert tp.calls == 1
        torch.testing.assert_close(found, 2 * MixtureMLP(router, made(weights), 2, True)(x))


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
        (
            "Qwen3Moe",
            {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "head_dim": 16},
        ),
    ],
)
def test_a_models_logits_are_those_of_transformers(
    family: str, changes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With these layers alone on Triton."""
    pytest.importorskip("triton", reason="triton is installed on Linux alone")
    for module in ("engine.layers.linear", "engine.layers.moe", "kernels.moe"):
        monkeypatch.setattr(f"{module}.on_triton", lambda x: True)
    tokens = torch.randint(2, 320, (10,)).tolist()
    theirs = expected(save(tmp_path, family, **changes), tokens)
    model = Paged(tmp_path)
    assert all(block._mlp._stacks for block, _ in model.model._blocks)
    assert (model.run(tokens, [8, 9]) - theirs).abs().max() <= 1e-4


def random_weights() -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(2 * WIDTH, HIDDEN) / 6, torch.randn(HIDDEN, WIDTH) / 8) for _ in range(COUNT)]


def made(weights: list[tuple[Tensor, Tensor]], activation: str = "silu") -> Iterator[GatedMLP]:
    """One after the other, as they are loaded."""
    for gate_up, down in weights:
        yield GatedMLP(Linear(gate_up.clone()), Linear(down.clone()), activation)
