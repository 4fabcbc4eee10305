"""Decode attention on a CPU without gathering keys or values: torch's embedding bags read the blocks in place.

An embedding bag is a weighted sum of a table's rows, and both products of attention have that form:

    scores[h, block]  = Σ_d  q[h, d] * keys[block, h // group, d, :]         128 rows of one block's tokens
    out[h]            = Σ_p  weights[h, p] * values[block(p), h // group, offset(p), :]

The first needs a block's keys transposed, ``[head_dim, block_size]``, so that a row has one dimension of all its
tokens. Sums are float32, and the cost is proportional to a sequence's length, wherever its blocks are. Gathering the
blocks and multiplying them would move the data three times, and oneDNN packs it once more.

Shapes: as in ``paged_decode``, with ``keys_by_dimension``; ``q`` and the cache have one dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.paged_decode import cap_, softmax
from kernels.paged_kv import PagedKV


@dataclass(slots=True)
class Bags:
    """The rows that a group of sequences reads: equal for all layers of one window."""

    keys: Tensor
    """int32 [sequences * blocks * new * heads * head_dim]: rows of keys, ``head_dim`` a bag."""
    key_starts: Tensor
    """int32: each bag's offset in ``keys``."""
    values: Tensor
    """int32 [sequences * new * heads * visible]: rows of values, ``visible`` a bag."""
    value_starts: Tensor
    blocks: int
    visible: slice
    """The positions within the blocks that any token sees."""
    mask: Tensor | None
    """bool [sequences, new, 1, visible]: True where a token must not see a position; ``None`` if all see all."""

    @classmethod
    def of(
        cls,
        block_tables: Tensor,
        seq_lens: Tensor,
        new: int,
        heads: int,
        cache_shape: torch.Size,
        window: int | None,
    ) -> Bags:
        """``block_tables`` may be wider than the longest sequence needs. All on the CPU."""
        # numpy's small operations take a third of torch's time.
        _, kv_heads, block_size, head_dim = cache_shape
        tables, lens = block_tables.numpy(), seq_lens.numpy()[:, None]
        ends = lens - np.arange(new - 1, -1, -1)
        starts = np.zeros_like(ends) if window is None else np.maximum(ends - window, 0)
        first = starts[:, :1] // block_size
        blocks = int(((lens - 1) // block_size - first).max()) + 1
        # A shorter sequence reads its last block again, masked.
        columns = np.minimum(first + np.arange(blocks), tables.shape[1] - 1)
        tables = np.take_along_axis(tables, columns, 1)
        ends, starts = ends - first * block_size, starts - first * block_size
        visible = slice(int(starts.min()), int(ends.max()))
        positions = np.arange(visible.start, visible.stop)
        mask = None
        if starts.max() > visible.start or ends.min() < visible.stop:
            mask = (positions >= ends[..., None]) | (positions < starts[..., None])

        # [sequences, blocks, kv_heads]: one block of one head.
        rows = (tables[..., None] * kv_heads + np.arange(kv_heads)).astype(np.int32)[..., None]
        keys = rows * head_dim + np.arange(head_dim, dtype=np.int32)
        keys = _repeat_heads(keys[:, :, None], new, heads)
        values = rows * block_size + np.arange(block_size, dtype=np.int32)
        values = values.swapaxes(1, 2).reshape(len(lens), 1, kv_heads, -1)[..., visible]
        values = _repeat_heads(values[:, None], new, heads)
        return cls(
            torch.from_numpy(keys),
            torch.arange(0, len(keys), head_dim, dtype=torch.int32),
            torch.from_numpy(values),
            torch.arange(0, len(values), len(positions), dtype=torch.int32),
            blocks,
            visible,
            None if mask is None else torch.from_numpy(mask[:, :, None]),
        )


def _repeat_heads(rows: np.ndarray, new: int, heads: int) -> np.ndarray:
    """``rows`` [sequences, blocks, 1, kv_heads, …] repeated for each new token and each head of a group, flat."""
    sequences, blocks, _, kv_heads, size = rows.shape
    shape = sequences, blocks, new, kv_heads, heads // kv_heads, size
    repeated = np.broadcast_to(rows[..., None, :], shape).reshape(-1)
    # Few rows may come as a view that is not to be written, which torch warns of.
    return repeated if repeated.flags.writeable else repeated.copy()


def paged_bags(
    q: Tensor,
    kv: PagedKV,
    bags: Bags,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """``q`` [sequences * new, heads, head_dim] → the same shape."""
    tokens, heads, head_dim = q.shape
    block_size, sequences = kv.keys.shape[2], len(kv.seq_lens)
    rows = tokens // sequences * heads
    queries = q.reshape(sequences, 1, -1).expand(-1, bags.blocks, -1).mul(scale).view(-1)
    scores = torch.embedding_bag(
        kv.keys.transpose(2, 3).view(-1, block_size), bags.keys, bags.key_starts, False, 0, False, queries
    )[0]
    scores = scores.view(sequences, bags.blocks, rows, block_size).transpose(1, 2)
    scores = scores.reshape(sequences, rows, -1)[..., bags.visible]
    if softcap is not None:
        scores = cap_(scores, softcap)
    if bags.mask is not None:
        scores.view(sequences, -1, heads, scores.shape[-1]).masked_fill_(bags.mask, float("-inf"))
    if sinks is not None:
        sinks = sinks.repeat(tokens // sequences)[:, None]
    weights = softmax(scores, sinks).view(-1)
    out = torch.embedding_bag(
        kv.values.view(-1, head_dim), bags.values, bags.value_starts, False, 0, False, weights
    )[0]
    return out.view(tokens, heads, head_dim)
