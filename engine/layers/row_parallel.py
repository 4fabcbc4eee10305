"""A linear layer whose inputs are sharded over ranks (Megatron-LM, https://arxiv.org/abs/1909.08053)."""

from __future__ import annotations

from torch import Tensor

from engine.layers.product import Product
from engine.parallel import TPGroup


class RowParallelLinear:
    """``x`` [tokens, this rank's inputs] → [tokens, out]: the sum of all ranks' products."""

    def __init__(self, part: Product, tp: TPGroup) -> None:
        self.part = part
        self.tp = tp

    def __call__(self, x: Tensor) -> Tensor:
        return self.tp.all_reduce(self.part(x))
