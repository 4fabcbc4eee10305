"""LFM2's gated short convolution, in place of attention (https://arxiv.org/abs/2511.23404)."""

from __future__ import annotations

from torch import Tensor

from engine.layers.causal_conv import CausalConv
from engine.layers.product import Product
from engine.state_batch import StateBatch
from engine.state_cache import LayerState


class ShortConv:
    """out · (after ⊙ conv(before ⊙ value)), where ``into`` makes the three of ``x``. ``x`` [tokens, hidden] → the same
    shape."""

    def __init__(self, into: Product, conv: CausalConv, out: Product) -> None:
        self._into = into
        self._conv = conv
        self._out = out

    def __call__(
        self, x: Tensor, rotation: tuple[Tensor, ...], batch: StateBatch, state: LayerState
    ) -> Tensor:
        before, after, value = self._into(x).chunk(3, -1)
        return self._out(after * self._conv(before * value, batch, state[0]))
