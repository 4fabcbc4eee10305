"""Linear layers that are sharded over ranks (Megatron-LM, https://arxiv.org/abs/1909.08053)."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.layers.product import Product
from engine.parallel.group import TPGroup


class RowParallelLinear:
    """``x`` [tokens, this rank's inputs] → [tokens, out]: the sum of all ranks' products."""

    def __init__(self, part: Product, tp: TPGroup) -> None:
        self.part = part
        self.tp = tp

    def __call__(self, x: Tensor) -> Tensor:
        return self.tp.all_reduce(self.part(x))


class GatheredLinear:
    """``x`` [tokens, in] → [tokens, out] on rank 0; on the others their outputs alone, which nobody asks for."""

    def __init__(self, part: Product, tp: TPGroup) -> None:
        self.part = part
        self.tp = tp

    def __call__(self, x: Tensor) -> Tensor:
        mine = self.part(x).contiguous()
        parts = self.tp.collectives.gather(mine)
        return torch.cat(parts, -1) if parts else mine
