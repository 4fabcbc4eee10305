"""Attention of one or a few new tokens per sequence over its paged cache, their own keys and values included.

    out[t, h] = softmax(cap(scale * q[t, h] · K[s, h // group]ᵀ)) V[s, h // group]
    K[s, g]   = keys[block_tables[s], g] * key_scales[block_tables[s], g], positions max(0, p + 1 - window) … p
    p         = seq_lens[s] - new + i        for t = s * new + i, 0 ≤ i < new
    cap(x)    = softcap * tanh(x / softcap), or x where there is no ``softcap``

Without a ``window`` a token sees all before it; with one, itself and the ``window - 1`` before it. Several new
tokens are guesses to be verified, or the short end of a prompt.

Shapes: ``q`` [sequences * new, heads, head_dim] → the same; of the cache, see paged_kv.py.

The algorithm is PagedAttention (Kwon et al., 2023, https://arxiv.org/abs/2309.06180); on a GPU, split into parts: see
flash_decoding.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.flash_decoding import paged_decode_triton
from kernels.launch import on_triton
from kernels.paged_kv import PagedKV

TILE = 64
"""Positions a tile. Keys are read in whole tiles, and prefill cuts its queries into them, at multiples counted from
the sequence's start, never from the chunk's: so a token's attention is computed in the same shape, to the same bits,
however a prompt is chunked."""

_PLACES = {
    torch.float32: (torch.int32, 20, -0x78100000, 2.0**120),
    torch.bfloat16: (torch.int16, 4, -0x7810, 2.0**120),
    torch.float16: (torch.int16, 7, -0x4080, 2.0**8),
}
"""Integers of each float's width, how far left float8_e4m3fn's bits go in it, which of them count once the sign has
filled up what is above it, and what the biases differ by."""


@dataclass(slots=True)
class Reads:
    """What a group of sequences reads of the cache, and does not see of it: the same in all layers of one window."""

    rows: Tensor
    """int64 [sequences * kv_heads * blocks]: which of the cache's runs of one block and head."""
    unseen: Tensor
    """bool [sequences, new, length]"""

    @classmethod
    def of(
        cls,
        block_tables: Tensor,
        seq_lens: Tensor,
        new: int,
        kv_heads: int,
        block_size: int,
        window: int | None,
    ) -> Reads:
        first = torch.zeros_like(seq_lens)
        if window is not None and (blocks := _blocks(window, block_size)) < block_tables.shape[1]:
            # Every new token as if it were alone, from the key that its tile of a prefill would begin with.
            back = torch.arange(new - 1, -1, -1, device=seq_lens.device)
            seq_lens = (seq_lens[:, None] - back).view(-1)
            block_tables = block_tables.repeat_interleave(new, 0)
            new = 1
            begin = (seq_lens - 1) // TILE * TILE
            first = (begin + 1 - window).clamp_(min=0) // TILE * TILE // block_size
            columns = first[:, None] + torch.arange(blocks, device=seq_lens.device)
            block_tables = block_tables.gather(1, columns.clamp_(max=block_tables.shape[1] - 1))
        length = block_tables.shape[1] * block_size
        positions = (first * block_size)[:, None] + torch.arange(length, device=seq_lens.device)
        ends = seq_lens[:, None] - torch.arange(new - 1, -1, -1, device=seq_lens.device)
        unseen = positions[:, None] >= ends[..., None]
        if window is not None:
            unseen |= positions[:, None] < ends[..., None] - window
        return cls(runs(block_tables, kv_heads), unseen)


def _blocks(window: int, block_size: int) -> int:
    """Blocks of whole tiles that hold any token's window."""
    length = -(-(window - 1) // TILE) * TILE + TILE
    return -(-length // block_size) + (TILE % block_size != 0)


def runs(block_tables: Tensor, kv_heads: int) -> Tensor:
    """The rows, one sequence's head after another, of a cache seen as [blocks * kv_heads, …]."""
    heads = torch.arange(kv_heads, device=block_tables.device)
    return (block_tables[:, None, :] * kv_heads + heads[:, None]).view(-1)


def gather(cache: Tensor, rows: Tensor, lists: int, dtype: torch.dtype) -> Tensor:
    """The runs of each head of each sequence, ``lists`` in all, in a row: [lists, length, head_dim] of ``dtype``.

    Of a quantized cache these are its numbers without their scales.
    """
    _, _, block_size, head_dim = cache.shape
    wide = cache.dtype == dtype
    stored = (cache if wide else cache.view(torch.int8)).view(-1, block_size * head_dim)
    found = stored.index_select(0, rows)
    if not wide:
        found = _widen(found, dtype) if cache.dtype == torch.float8_e4m3fn else found.to(dtype)
    return found.view(lists, -1, head_dim)


def gather_keys(kv: PagedKV, rows: Tensor, lists: int, dtype: torch.dtype) -> Tensor:
    """As ``gather``, but as the second factor of a product with queries: [lists, head_dim, length]."""
    if not kv.keys_by_dimension:
        return gather(kv.keys, rows, lists, dtype).transpose(1, 2)
    _, _, block_size, head_dim = kv.keys.shape
    found = kv.keys.transpose(2, 3).view(-1, block_size * head_dim).index_select(0, rows)
    return found.view(lists, -1, head_dim, block_size).transpose(1, 2).reshape(lists, head_dim, -1)


def gather_scales(scales: Tensor, rows: Tensor, lists: int) -> Tensor:
    """[lists, 1, length]"""
    return scales.view(-1, scales.shape[2]).index_select(0, rows).view(lists, 1, -1)


def _widen(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """float8_e4m3fn's bytes as numbers. On a CPU torch converts them one by one; moved to where a wider format has
    its sign, exponent and mantissa they are right but for the exponent's bias of 7."""
    if bits.device.type != "cpu":
        return bits.view(torch.float8_e4m3fn).to(dtype)
    integers, shift, mask, factor = _PLACES[dtype]
    return bits.to(integers).bitwise_left_shift_(shift).bitwise_and_(mask).view(dtype).mul_(factor)


def cap_(scores: Tensor, softcap: float | None) -> Tensor:
    """In place."""
    return scores if softcap is None else scores.div_(softcap).tanh_().mul_(softcap)


def paged_decode_reference(
    q: Tensor,
    kv: PagedKV,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    reads: Reads | None = None,
) -> Tensor:
    """``reads``: those of ``kv`` and ``window``, where they are at hand."""
    # Two bmm's with the query group as rows: on a CPU over ten times faster than SDPA with enable_gqa.
    tokens, heads, head_dim = q.shape
    _, kv_heads, block_size, _ = kv.keys.shape
    if reads is None:
        new = tokens // len(kv.seq_lens)
        reads = Reads.of(kv.block_tables, kv.seq_lens, new, kv_heads, block_size, window)
    rows, unseen = reads.rows, reads.unseen
    sequences, new, length = unseen.shape
    lists, group = sequences * kv_heads, heads // kv_heads
    queries = q * scale
    if new > 1:
        queries = queries.view(sequences, new, kv_heads, group, head_dim).transpose(1, 2)
    queries = queries.reshape(lists, new * group, head_dim)
    scores = torch.bmm(queries, gather_keys(kv, rows, lists, q.dtype))
    if kv.key_scales is not None:
        scores.mul_(gather_scales(kv.key_scales, rows, lists))
    if softcap is not None:
        cap_(scores, softcap)
    if new == 1:
        scores.view(sequences, -1, length).masked_fill_(unseen, float("-inf"))
    else:
        by_token = scores.view(sequences, kv_heads, new, group, length)
        by_token.masked_fill_(unseen[:, None, :, None], float("-inf"))
    # Inside, softmax is float32 in any case.
    weights = torch.softmax(scores, -1)
    if kv.value_scales is not None:
        weights.mul_(gather_scales(kv.value_scales, rows, lists))
    mixed = torch.bmm(weights, gather(kv.values, rows, lists, q.dtype))
    if new > 1:
        mixed = mixed.view(sequences, kv_heads, new, group, head_dim).transpose(1, 2)
    return mixed.reshape(tokens, heads, head_dim)


def paged_decode(
    q: Tensor,
    kv: PagedKV,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    reads: Reads | None = None,
) -> Tensor:
    if on_triton(q) and not kv.keys_by_dimension:
        return paged_decode_triton(q, kv, scale, window, softcap)
    return paged_decode_reference(q, kv, scale, window, softcap, reads)
