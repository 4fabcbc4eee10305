"""The mixture of experts: each token goes through a few of many MLPs."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.layers.mlp import GatedMLP
from engine.weights.loader import Product
from kernels.moe import group, route


class MixtureMLP:
    """``x`` [tokens, hidden] → [tokens, hidden].

    Each expert that is used runs once, over its tokens. A token's experts are summed in the order of their numbers,
    so its result does not depend on whom it shares the step with.
    """

    def __init__(self, router: Product, experts: Sequence[GatedMLP], top: int, normalise: bool) -> None:
        self._router = router
        self._experts = experts
        self._top = top
        self._normalise = normalise

    def __call__(self, x: Tensor) -> Tensor:
        chosen, weights = route(self._router(x), self._top, self._normalise)
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
