"""Tensor parallelism: how layers are sharded over a group of ranks, and how partial results are summed.

A layer with ``split="out"`` is column-parallel: each rank computes some of its outputs (some heads, some of the MLP's
width). The next one has ``split="in"`` and is row-parallel: each rank multiplies its shard of the inputs, and the
partial sums are all-reduced, once for attention and once for the MLP (Megatron-LM,
https://arxiv.org/abs/1909.08053). Embeddings, norms and the head are replicated on every rank.

Rank 0 is the engine process; ``engine/worker/ranks.py`` starts the others and sends them each step.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from engine.errors import UnsupportedModel


class TPGroup:
    """This process's rank in the group; the base class is a group of one, which holds whole layers."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    def local_device(self, device: torch.device) -> torch.device:
        """The device of this rank, where each rank has a device of its own."""
        return device

    def all_reduce_min(self, blocks: int) -> int:
        """The smallest number of KV blocks that fits on any rank."""
        return blocks

    def send(self, message: object) -> None:
        """Broadcasts from rank 0 what all other ranks have to execute."""

    def close(self) -> None:
        """Stops the other ranks' processes."""

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

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' ``x``, the same to the last bit on each; ``x`` may be overwritten."""
        x = x.contiguous()
        if self.size > 2 and x.device.type == "cpu":
            # Gloo's summation order depends on an element's offset, so a row's sum would depend on its neighbours
            # in the batch. Gathering and summing in rank order avoids that; for two ranks there is only one order.
            parts = [torch.empty_like(x) for _ in range(self.size)]
            dist.all_gather(parts, x)
            return torch.stack(parts).sum(0)
        dist.all_reduce(x)
        return x


SINGLE_RANK = TPGroup()
