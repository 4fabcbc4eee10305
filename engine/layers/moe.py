"""The mixture of experts: each token goes through a few of many MLPs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional

from engine.layers.linear import Linear
from engine.layers.mlp import GatedMLP
from kernels.moe import group, route


class MixtureMLP:
    """``x`` [tokens, hidden] → [tokens, hidden]. ``router`` [experts, hidden].

    Each expert that is used runs once, over its tokens. A token's experts are summed in the order of their numbers,
    so its result does not depend on whom it shares the step with.
    """

    def __init__(
        self,
        router: Tensor,
        experts: Sequence[GatedMLP],
        top: int,
        normalise: bool,
        *,
        invariant: bool = False,
    ) -> None:
        # MKL's rows have the same bits wherever they stand if outputs come in eights.
        self._router = Linear(functional.pad(router, (0, 0, 0, -len(router) % 8)), invariant=invariant)
        self._experts = experts
        self._top = top
        self._normalise = normalise

    def __call__(self, x: Tensor) -> Tensor:
        chosen, weights = route(self._router(x)[:, : len(self._experts)], self._top, self._normalise)
        out = x.new_zeros(x.shape)
        if len(x) == 1:
            for expert, weight in sorted(
                zip(chosen[0].tolist(), weights[0].unbind(), strict=True), key=_first
            ):
                out.add_(self._experts[expert](x).mul_(weight))
            return out
        for expert, rows, places in group(chosen):
            y = self._experts[expert](x[rows])
            out.index_add_(0, rows, y.mul_(weights[rows, places, None]))
        return out


def _first(pair: tuple[int, Tensor]) -> int:
    return pair[0]
