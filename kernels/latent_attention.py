"""Causal attention over a paged cache of latents (multi-head latent attention, https://arxiv.org/abs/2405.04434).

    out[t, h] = Σ_a w[a] c[a],    w = softmax(scale * (q[t, h, :d] · k[a] + q[t, h, d:] · c[a])),    a ≤ p

where ``p`` is the position of row ``t``. A token has one latent ``c`` for all heads and, as that cannot be rotated, one
key ``k``. What turns latents into a head's keys and values was taken into its query, and is taken into its output, so
that latents are read as they lie, once for all heads.

Shapes: ``q`` [tokens, heads, d + latent] → [tokens, heads, latent]; of the cache, see paged_kv.py, with ``keys`` of
size ``d`` and ``values``, the latents, both for one head. There is no kernel for GPUs yet: torch computes it there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.paged_decode import GatherIndex, cache_rows, gather, gather_scales
from kernels.paged_kv import PagedKV
from kernels.paged_prefill import tiled

_ROWS = 1024
"""Rows of a tile that are computed at a time: many heads' scores of a long context would take gigabytes."""


def latent_decode(q: Tensor, kv: PagedKV, index: GatherIndex, scale: float) -> Tensor:
    """One or a few new tokens of each sequence. ``index``: that of ``kv`` for one head."""
    tokens, heads, size = q.shape
    sequences, new, length = index.mask.shape
    context = _Context(kv, index.rows, sequences, q.dtype)
    scores = context.scores((q * scale).view(sequences, new * heads, size), length)
    scores.view(sequences, new, heads, length).masked_fill_(index.mask[:, :, None], float("-inf"))
    return context.mixed(scores, length).view(tokens, heads, -1)


def latent_prefill(q: Tensor, kv: PagedKV, query_starts: Tensor, scale: float, tile: int) -> Tensor:
    """Several new tokens of each sequence, in tiles whose shapes depend on positions alone: as paged_prefill.py."""
    heads, block_size = q.shape[1], kv.keys.shape[2]
    starts, lens = query_starts.tolist(), kv.seq_lens.tolist()
    out = q.new_empty(len(q), heads, kv.values.shape[3])
    below = torch.arange(tile, device=q.device)
    future = (below[:, None] < below).repeat(heads, 1)
    for s, length in enumerate(lens):
        new = q[starts[s] : starts[s + 1]]
        start = length - len(new)
        rows, padding = tiled(new, start, scale, 1, tile)
        begin = start - padding
        # Whole tiles of the context; what is past the end is masked, and finite in any block.
        blocks = -(-(begin + len(rows) * tile) // block_size)
        table = kv.block_tables[s : s + 1, :blocks]
        table = torch.nn.functional.pad(table, (0, blocks - table.shape[1]))
        context = _Context(kv, cache_rows(table, 1), 1, q.dtype)
        parts = []
        for i, queries in enumerate(rows):
            end = begin + (i + 1) * tile
            mixed = []
            for some, mask in zip(queries[0].split(_ROWS), future.split(_ROWS), strict=True):
                scores = context.scores(some[None], end)
                scores[0, :, end - tile :].masked_fill_(mask, float("-inf"))
                mixed.append(context.mixed(scores, end)[0])
            parts.append(torch.cat(mixed).view(heads, tile, -1).transpose(0, 1))
        out[starts[s] : starts[s + 1]] = torch.cat(parts)[padding : padding + len(new)]
    return out


class _Context:
    """What some sequences see, gathered: keys and latents [sequences, length, …]."""

    def __init__(self, kv: PagedKV, rows: Tensor, sequences: int, dtype: torch.dtype) -> None:
        self._keys, self._latents = (gather(part, rows, sequences, dtype) for part in (kv.keys, kv.values))
        self._key_scales, self._scales = (
            None if scales is None else gather_scales(scales, rows, sequences)
            for scales in (kv.key_scales, kv.value_scales)
        )

    def scores(self, queries: Tensor, length: int) -> Tensor:
        """``queries`` [sequences, rows, …] → [sequences, rows, length], over the first ``length`` positions."""
        keys, latents = self._keys[:, :length], self._latents[:, :length]
        size = keys.shape[2]
        scores = torch.bmm(queries[..., :size], keys.mT)
        if self._key_scales is None or self._scales is None:
            return scores.baddbmm_(queries[..., size:], latents.mT)
        scores.mul_(self._key_scales[..., :length])
        return scores.add_(torch.bmm(queries[..., size:], latents.mT).mul_(self._scales[..., :length]))

    def mixed(self, scores: Tensor, length: int) -> Tensor:
        """The latents [sequences, rows, latent], weighted by the softmax of ``scores``."""
        # softmax accumulates in float32 whatever the dtype.
        weights = torch.softmax(scores, -1)
        if self._scales is not None:
            weights.mul_(self._scales[..., :length])
        return torch.bmm(weights, self._latents[:, :length])
