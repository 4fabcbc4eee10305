"""Attention of one or a few new tokens per sequence over its paged cache, their own keys and values included.

    out[t, h] = softmax(cap(scale * q[t, h] · K[s, h // group]ᵀ)) V[s, h // group]
    K[s, g]   = keys[block_tables[s], g] * key_scales[block_tables[s], g], positions max(0, p + 1 - window) … p
    p         = seq_lens[s] - new + i        for t = s * new + i, 0 ≤ i < new
    cap(x)    = softcap * tanh(x / softcap), or x where there is no ``softcap``

With ``sinks`` float32 [heads] softmax's denominator has one more term, exp(sinks[h]): attention that goes nowhere, as
in gpt-oss (https://arxiv.org/abs/2508.10925).

With a ``tree`` it is tree_mask.py that says what a token sees of the draft tokens before it.

Without a ``window`` a token sees all before it; with one, itself and the ``window - 1`` before it. Several new
tokens are draft tokens to be verified, or the short end of a prompt.

Shapes: ``q`` [sequences * new, heads, head_dim] → the same; of the cache, see paged_kv.py.

The algorithm is PagedAttention (Kwon et al., 2023, https://arxiv.org/abs/2309.06180). The Triton kernel, which splits
sequences, is in flash_decoding.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.flash_decoding import paged_decode_triton
from kernels.int4_kv import gather_int4_keys, gather_int4_values
from kernels.launch import on_triton
from kernels.paged_kv import PagedKV
from kernels.tree_mask import TreeMask

TILE = 64
"""Positions of a tile. Keys are read in whole tiles, and prefill tiles its queries, at multiples counted from the
sequence's start rather than the chunk's: so a token's attention is computed in the same shape, to the same bits,
however its prompt is chunked."""

_FP8_WIDENING = {
    torch.float32: (torch.int32, 20, -0x78100000, 2.0**120),
    torch.bfloat16: (torch.int16, 4, -0x7810, 2.0**120),
    torch.float16: (torch.int16, 7, -0x4080, 2.0**8),
}
"""How float8_e4m3fn is widened by shifting: an integer type of the target's width, the left shift, the mask that
removes copies of the sign bit, and the factor that corrects the exponent's bias."""


@dataclass(slots=True)
class GatherIndex:
    """The cache rows that a group of sequences gathers, and the attention mask: equal for all layers of one window."""

    rows: Tensor
    """int64 [sequences * kv_heads * blocks]: rows of the cache viewed as [blocks * kv_heads, block_size * head_dim]."""
    mask: Tensor
    """bool [sequences, new, length]: True where a token must not see a position."""

    @classmethod
    def of(
        cls,
        block_tables: Tensor,
        seq_lens: Tensor,
        new: int,
        kv_heads: int,
        block_size: int,
        window: int | None,
        tree: TreeMask | None = None,
    ) -> GatherIndex:
        """``tree``: of the sequences' new tokens; with a ``window`` it is refused where models are loaded."""
        first = torch.zeros_like(seq_lens)
        if window is not None and (blocks := _blocks(window, block_size)) < block_tables.shape[1]:
            # Each new token becomes a sequence of its own, starting at the first key of its prefill tile.
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
        mask = positions[:, None] >= ends[..., None]
        if window is not None:
            mask |= positions[:, None] < ends[..., None] - window
        if tree is not None:
            mask |= tree.hidden(positions)
        return cls(cache_rows(block_tables, kv_heads), mask)


def _blocks(window: int, block_size: int) -> int:
    """Blocks of the whole tiles that cover any token's window."""
    length = -(-(window - 1) // TILE) * TILE + TILE
    return -(-length // block_size) + (TILE % block_size != 0)


def cache_rows(block_tables: Tensor, kv_heads: int) -> Tensor:
    """Rows of a cache viewed as [blocks * kv_heads, …], by sequence, then head, then block."""
    heads = torch.arange(kv_heads, device=block_tables.device)
    return (block_tables[:, None, :] * kv_heads + heads[:, None]).view(-1)


def gather(cache: Tensor, rows: Tensor, batch: int, dtype: torch.dtype) -> Tensor:
    """Gathers ``rows``: [batch, length, head_dim] in ``dtype``, where ``batch`` = sequences * kv_heads.

    Elements of a quantized cache are not multiplied by their scales.
    """
    _, _, block_size, head_dim = cache.shape
    wide = cache.dtype == dtype
    stored = (cache if wide else cache.view(torch.int8)).view(-1, block_size * head_dim)
    gathered = stored.index_select(0, rows)
    if not wide:
        gathered = _widen(gathered, dtype) if cache.dtype == torch.float8_e4m3fn else gathered.to(dtype)
    return gathered.view(batch, -1, head_dim)


def gather_keys(kv: PagedKV, rows: Tensor, batch: int, dtype: torch.dtype) -> Tensor:
    """As ``gather``, transposed for the product with queries: [batch, head_dim, length]."""
    if kv.in_4_bits:
        return gather_int4_keys(kv, rows, batch, dtype).transpose(1, 2)
    if not kv.keys_by_dimension:
        return gather(kv.keys, rows, batch, dtype).transpose(1, 2)
    _, _, block_size, head_dim = kv.keys.shape
    gathered = kv.keys.transpose(2, 3).view(-1, block_size * head_dim).index_select(0, rows)
    return gathered.view(batch, -1, head_dim, block_size).transpose(1, 2).reshape(batch, head_dim, -1)


def gather_values(kv: PagedKV, rows: Tensor, batch: int, dtype: torch.dtype) -> Tensor:
    return (
        gather_int4_values(kv, rows, batch, dtype) if kv.in_4_bits else gather(kv.values, rows, batch, dtype)
    )


def gather_scales(scales: Tensor, rows: Tensor, batch: int) -> Tensor:
    """[batch, 1, length]"""
    return scales.view(-1, scales.shape[2]).index_select(0, rows).view(batch, 1, -1)


def _widen(bits: Tensor, dtype: torch.dtype) -> Tensor:
    """Widens float8_e4m3fn ``bits``. On a CPU torch converts element by element; shifting the bits to the sign,
    exponent and mantissa of the wider format is vectorized, and leaves only the exponent's bias to correct."""
    if bits.device.type != "cpu":
        return bits.view(torch.float8_e4m3fn).to(dtype)
    integers, shift, sign_mask, factor = _FP8_WIDENING[dtype]
    return bits.to(integers).bitwise_left_shift_(shift).bitwise_and_(sign_mask).view(dtype).mul_(factor)


def cap_(scores: Tensor, softcap: float | None) -> Tensor:
    """In place."""
    return scores if softcap is None else scores.div_(softcap).tanh_().mul_(softcap)


def softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Over the last dimension, of scores and sink; the sink's weight is left out. ``sinks``: as many rows, or one."""
    # softmax accumulates in float32 whatever the dtype.
    if sinks is None:
        return torch.softmax(scores, -1)
    # The sink stands before the scores, in vectors of its own: however many scores are masked behind the last that is
    # seen, sums run in one order.
    joined = torch.nn.functional.pad(scores, (_VECTOR, 0), value=float("-inf"))
    joined[..., :1] = sinks
    return torch.softmax(joined, -1)[..., _VECTOR:].contiguous()


_VECTOR = 64


def paged_decode_reference(
    q: Tensor,
    kv: PagedKV,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    index: GatherIndex | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """``index``: that of ``kv`` and ``window`` if the caller has it already."""
    # Two bmms with the query group as rows: on a CPU over ten times as fast as SDPA with enable_gqa.
    tokens, heads, head_dim = q.shape
    _, kv_heads, block_size, _ = kv.keys.shape
    if index is None:
        new = tokens // len(kv.seq_lens)
        index = GatherIndex.of(kv.block_tables, kv.seq_lens, new, kv_heads, block_size, window)
    rows, mask = index.rows, index.mask
    sequences, new, length = mask.shape
    batch, group = sequences * kv_heads, heads // kv_heads
    queries = q * scale
    if new > 1:
        queries = queries.view(sequences, new, kv_heads, group, head_dim).transpose(1, 2)
    queries = queries.reshape(batch, new * group, head_dim)
    scores = torch.bmm(queries, gather_keys(kv, rows, batch, q.dtype))
    if kv.key_scales is not None and kv.scaled_by_token:
        scores.mul_(gather_scales(kv.key_scales, rows, batch))
    if softcap is not None:
        cap_(scores, softcap)
    if new == 1:
        scores.view(sequences, -1, length).masked_fill_(mask, float("-inf"))
    else:
        by_token = scores.view(sequences, kv_heads, new, group, length)
        by_token.masked_fill_(mask[:, None, :, None], float("-inf"))
    if sinks is not None:
        sinks = sinks.view(kv_heads, 1, group).expand(sequences, -1, new, -1).reshape(batch, -1, 1)
    weights = softmax(scores, sinks)
    if kv.value_scales is not None and kv.scaled_by_token:
        weights.mul_(gather_scales(kv.value_scales, rows, batch))
    out = torch.bmm(weights, gather_values(kv, rows, batch, q.dtype))
    if new > 1:
        out = out.view(sequences, kv_heads, new, group, head_dim).transpose(1, 2)
    return out.reshape(tokens, heads, head_dim)


def paged_decode(
    q: Tensor,
    kv: PagedKV,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    index: GatherIndex | None = None,
    sinks: Tensor | None = None,
    tree: TreeMask | None = None,
) -> Tensor:
    if on_triton(q) and not kv.keys_by_dimension:
        return paged_decode_triton(q, kv, scale, window, softcap, sinks=sinks, tree=tree)
    if index is None and tree is not None:
        new, (_, kv_heads, block_size, _) = len(q) // len(kv.seq_lens), kv.keys.shape
        index = GatherIndex.of(kv.block_tables, kv.seq_lens, new, kv_heads, block_size, window, tree)
    return paged_decode_reference(q, kv, scale, window, softcap, index, sinks)
