"""Tensor parallelism: how layers are sharded over a group of ranks, and how partial results are summed.

A layer with ``split="out"`` is column-parallel: each rank computes some of its outputs (some heads, some of the MLP's
width). The next one has ``split="in"`` and is row-parallel: each rank multiplies its shard of the inputs, and the
partial sums are all-reduced, once for attention and once for the MLP (Megatron-LM,
https://arxiv.org/abs/1909.08053). The embedding and the head are sharded by tokens, and norms are replicated. Where
there are fewer KV heads than ranks, several ranks have the same one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.parallel.collectives import Collectives


class TPGroup:
    """This process's rank in the group; a group of one holds whole layers."""

    def __init__(self, rank: int = 0, size: int = 1, collectives: Collectives | None = None) -> None:
        """``collectives``: none for a group that computes nothing."""
        self.rank = rank
        self.size = size
        self._collectives = collectives

    @property
    def collectives(self) -> Collectives:
        if self._collectives is None:
            raise RuntimeError("this group of ranks is not connected")
        return self._collectives

    def divide(self, count: int, what: str) -> int:
        """``count`` over the ranks. Raises ``UnsupportedModel`` if it is not divisible by the group's size."""
        if count % self.size:
            raise UnsupportedModel(
                f"{self.size} ranks cannot share {count} {what} evenly: choose another --tensor-parallel."
            )
        return count // self.size

    def shard(self, tensor: Tensor, dim: int, what: str) -> Tensor:
        """This rank's shard of ``tensor`` along ``dim``."""
        if self.size == 1:
            return tensor
        width = self.divide(tensor.shape[dim], what)
        return tensor.narrow(dim, self.rank * width, width)

    def copies(self, count: int) -> int:
        """How many ranks have the same of ``count`` KV heads. Raises ``UnsupportedModel`` where some would have more
        ranks than others."""
        if self.size % count == 0:
            return self.size // count
        self.divide(count, "KV heads")
        return 1

    def sharing(self, copies: int) -> TPGroup:
        """The group as a tensor has it of whose shards each is on ``copies`` ranks. It computes nothing."""
        return self if copies == 1 else TPGroup(self.rank // copies, self.size // copies)

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' ``x``, the same to the last bit on each; ``x`` may be overwritten."""
        x = x.contiguous()
        if self.size > 2 and x.device.type == "cpu":
            # Gloo's summation order depends on an element's offset, so a row's sum would depend on its neighbours
            # in the batch. Gathering and summing in rank order avoids that; for two ranks there is only one order.
            return torch.stack(self.collectives.all_gather(x)).sum(0)
        self.collectives.all_reduce(x)
        return x


SINGLE_RANK = TPGroup()
