"""Tensor parallelism: how the ranks that share a model cut its layers and add up what each has computed.

A layer with ``split="out"`` is cut by its outputs (each rank has some of the heads, some of the MLP's width), the
next one with ``split="in"`` by its inputs, and what the ranks get from that is summed: one all-reduce for attention
and one for the MLP (Megatron-LM, https://arxiv.org/abs/1909.08053). Embeddings, norms and the head are on every rank.

Rank 0 is the loop process; ``engine/worker/ranks.py`` starts the others and speaks to them.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from engine.errors import UnsupportedModel


class Ranks:
    """Which part of each layer is this process's; the class itself is that of a process that has all of it."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank = rank
        self.size = size

    def place(self, device: torch.device) -> torch.device:
        """This rank's device, where several are of the kind."""
        return device

    def agree(self, blocks: int) -> int:
        """The fewest KV blocks that any rank has room for."""
        return blocks

    def send(self, message: object) -> None:
        """What rank 0 does, and the others are to do as well."""

    def close(self) -> None:
        """Ends the other processes."""

    def share(self, count: int, what: str) -> int:
        """How many of ``count`` are this rank's. Raises ``UnsupportedModel`` if they cannot be shared evenly."""
        if count % self.size:
            raise UnsupportedModel(
                f"{self.size} ranks cannot share {count} {what} evenly: choose another --tensor-parallel."
            )
        return count // self.size

    def cut(self, tensor: Tensor, dim: int, what: str) -> Tensor:
        """This rank's part of ``tensor`` along ``dim``."""
        if self.size == 1:
            return tensor
        width = self.share(tensor.shape[dim], what)
        return tensor.narrow(dim, self.rank * width, width)

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' ``x``, the same to the last bit on each; ``x`` may be overwritten."""
        x = x.contiguous()
        if self.size > 2 and x.device.type == "cpu":
            # Gloo adds up in an order that depends on where a number stands. In one order for all, a row's sum
            # does not depend on its neighbours; two numbers have but one order.
            parts = [torch.empty_like(x) for _ in range(self.size)]
            dist.all_gather(parts, x)
            return torch.stack(parts).sum(0)
        dist.all_reduce(x)
        return x


ALONE = Ranks()
