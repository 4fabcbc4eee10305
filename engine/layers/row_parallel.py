"""A linear layer of which each rank has some of the inputs (Megatron-LM, https://arxiv.org/abs/1909.08053)."""

from __future__ import annotations

from torch import Tensor

from engine.layers.product import Product
from engine.parallel import Ranks


class RowParallelLinear:
    """``x`` [tokens, this rank's inputs] → [tokens, out]: the sum of all ranks' products."""

    def __init__(self, part: Product, ranks: Ranks) -> None:
        self.part = part
        self.ranks = ranks

    def __call__(self, x: Tensor) -> Tensor:
        return self.ranks.all_reduce(self.part(x))
