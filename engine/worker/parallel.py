"""Tensor parallelism: how the ranks that share a model cut its layers and add up what each has computed.

A layer with ``split="out"`` is cut by its outputs (each rank has some of the heads, some of the MLP's width), the
next one with ``split="in"`` by its inputs, and what the ranks get from that is summed: one all-reduce for attention
and one for the MLP (Megatron-LM, https://arxiv.org/abs/1909.08053). Embeddings, norms and the head are on every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.worker.kv_cache import KVShape


@dataclass(frozen=True, slots=True)
class Ranks:
    """Which part of each layer is this process's."""

    rank: int = 0
    size: int = 1

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

    def shape(self, whole: KVShape) -> KVShape:
        """The part of each token's keys and values that this rank keeps."""
        return replace(whole, kv_heads=self.share(whole.kv_heads, "key/value heads"))

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' ``x``, the same to the last bit on each; ``x`` may be overwritten."""
        if self.size > 2 and x.device.type == "cpu":
            # Gloo adds up in an order that depends on where a number stands. In one order for all, a row's sum
            # does not depend on its neighbours; two numbers have but one order.
            parts = [torch.empty_like(x) for _ in range(self.size)]
            dist.all_gather(parts, x.contiguous())
            return torch.stack(parts).sum(0)
        x = x.contiguous()
        dist.all_reduce(x)
        return x


ALONE = Ranks()


class Reduced:
    """A layer of which each rank has some inputs: their results are summed."""

    def __init__(self, part: Callable[[Tensor], Tensor], ranks: Ranks) -> None:
        self._part = part
        self._ranks = ranks

    def __call__(self, x: Tensor) -> Tensor:
        return self._ranks.all_reduce(self._part(x))
