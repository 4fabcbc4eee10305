"""Sequences scattered over a paged cache, and plain attention to compare with."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.paged_kv import PagedKV


@dataclass
class Paged:
    keys: list[Tensor]
    """One [length, kv_heads, head_dim] per sequence."""
    values: list[Tensor]
    k_cache: Tensor
    v_cache: Tensor
    block_tables: Tensor
    seq_lens: Tensor

    def kv(self, rows: slice = slice(None)) -> PagedKV:
        """What the kernels are given, of all sequences or of some."""
        return PagedKV(self.k_cache, self.v_cache, self.block_tables[rows], self.seq_lens[rows])


def scatter(lengths: list[int], *, kv_heads: int, head_dim: int, block_size: int, seed: int = 0) -> Paged:
    """Blocks are handed out in random order, and what no sequence owns is filled with large numbers."""
    generator = torch.Generator().manual_seed(seed)
    counts = [-(-length // block_size) for length in lengths]
    total = sum(counts) + 3
    order = torch.randperm(total - 1, generator=generator).tolist()
    size = (total, kv_heads, block_size, head_dim)
    k_cache, v_cache = torch.full(size, 1e4), torch.full(size, -1e4)
    keys, values, tables = [], [], []
    for length, count in zip(lengths, counts, strict=True):
        blocks = [order.pop() for _ in range(count)]
        k = torch.randn(length, kv_heads, head_dim, generator=generator)
        v = torch.randn(length, kv_heads, head_dim, generator=generator)
        for t in range(length):
            block, offset = blocks[t // block_size], t % block_size
            k_cache[block, :, offset] = k[t]
            v_cache[block, :, offset] = v[t]
        keys.append(k)
        values.append(v)
        tables.append(blocks)
    width = max(counts)
    padded = [blocks + [total - 1] * (width - len(blocks)) for blocks in tables]
    return Paged(keys, values, k_cache, v_cache, torch.tensor(padded), torch.tensor(lengths))


def dense(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """``q`` [new, heads, d] are the last positions of ``keys`` [length, kv_heads, d]. Loops, in float64."""
    new, heads, _ = q.shape
    length, kv_heads, _ = keys.shape
    out = torch.zeros_like(q, dtype=torch.float64)
    for t in range(new):
        end = length - new + t + 1
        seen = slice(0 if window is None else max(0, end - window), end)
        for h in range(heads):
            g = h // (heads // kv_heads)
            scores = keys[seen, g].double() @ q[t, h].double() * scale
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            if sinks is not None:
                scores = torch.cat([scores, sinks[h : h + 1].double()])
            out[t, h] = torch.softmax(scores, 0)[: seen.stop - seen.start] @ values[seen, g].double()
    return out
