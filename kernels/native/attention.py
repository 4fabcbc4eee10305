"""Attention over a paged cache of bfloat16 or float32 on a CPU, in C: decodes, draft tokens and prefills in one call.

    out[t, h] = softmax(cap(scale * q[t, h] · K[s, h // group, a:p + 1]ᵀ)) V[s, h // group, a:p + 1]
    p         = seq_lens[s] - new[s] + (t - query_starts[s]),   new[s] = query_starts[s + 1] - query_starts[s]
    a         = max(0, p + 1 - window), or 0 where there is no ``window``
    cap(x)    = softcap * tanh(x / softcap), or x where there is no ``softcap``

With ``branches`` a token sees of its sequence's positions from ``roots[s]`` on only those whose bits it has: so draft
tokens are verified that form a tree, one branch beside another.

With ``sinks`` float32 [heads] softmax's denominator has one more term, exp(sinks[h]).

Keys and values are read in place, in panels of 16 tokens (see attention.c and, for float32, attention32.c), so that a
step takes about as long as reading them. A token's result is the same to the bit in any batch, however its prompt was
chunked.

Shapes: ``q`` [tokens, heads, head_dim], the sequences' rows one after another;
``keys`` [blocks, kv_heads, block_size / 16, head_dim / n, 16, n];
``values`` [blocks, kv_heads, block_size / 16, 16 / n, head_dim, n], where a word of four bytes has ``n`` numbers.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.launch import path
from kernels.native.calls import Function
from kernels.native.library import load
from kernels.tree_mask import TreeMask

PANEL = 16
_WIDEST = 256


_FILES = {torch.bfloat16: ("attention", "store"), torch.float32: ("attention32", "store32")}
"""The C file with attention, and the function that stores, by dtype."""


class _Job(ctypes.Structure):
    """As in attention.c and attention32.c."""

    _fields_ = (
        *(
            (name, c_void_p)
            for name in ("query", "out", "keys", "values", "tables", "starts", "lengths", "sinks")
        ),
        *((name, c_void_p) for name in ("branches", "roots")),
        *(
            (name, c_int64)
            for name in ("query_stride", "width", "sequences", "heads", "kv_heads", "head_dim")
        ),
        *((name, c_int64) for name in ("block_size", "window")),
        *((name, c_float) for name in ("scale", "softcap")),
    )


@dataclass(slots=True)
class PagedSequences:
    """The sequences of a batch, in the order of their rows."""

    block_tables: Tensor
    """int64 [sequences, max_blocks]"""
    query_starts: Tensor
    """int64 [sequences + 1]"""
    seq_lens: Tensor
    """int64 [sequences], the new tokens included."""
    tree: TreeMask | None = None


class _StoreJob(ctypes.Structure):
    """As in store.c."""

    _fields_ = (
        *((name, c_void_p) for name in ("new_keys", "new_values", "keys", "values", "slots")),
        *(
            (name, c_int64)
            for name in ("key_stride", "value_stride", "tokens", "kv_heads", "dim", "block_size")
        ),
    )


class _Functions(NamedTuple):
    """In C."""

    attend: Function
    store: Function


@cache
def _functions(dtype: torch.dtype) -> _Functions | None:
    """``None`` if they are not available."""
    if dtype not in _FILES or path() != "auto":
        return None
    file, storing = _FILES[dtype]
    attention, store = load(file, "attend"), load("store", storing)
    if attention is None or store is None:
        return None
    return _Functions(Function(attention.attend), Function(getattr(store, storing)))


def _needed(dtype: torch.dtype) -> _Functions:
    functions = _functions(dtype)
    if functions is None:
        raise RuntimeError(
            "A packed cache needs the C code of kernels/native, which is not available on this machine."
        )
    return functions


def packs(device: torch.device, dtype: torch.dtype, head_dim: int, block_size: int) -> bool:
    """Whether attention in C supports such a cache on this machine."""
    fits = head_dim % PANEL == 0 and head_dim <= _WIDEST and block_size % PANEL == 0
    return fits and device.type == "cpu" and _functions(dtype) is not None


def packed_shapes(
    blocks: int, kv_heads: int, block_size: int, head_dim: int, dtype: torch.dtype
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of keys and of values."""
    panels, share = (blocks, kv_heads, block_size // PANEL), 4 // dtype.itemsize
    return (*panels, head_dim // share, PANEL, share), (*panels, PANEL // share, head_dim, share)


def unpack(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Copies [blocks, kv_heads, block_size, head_dim]."""
    keys, values = keys.transpose(3, 4), values.transpose(4, 5)
    return keys.flatten(4).flatten(2, 3), values.flatten(3, 4).flatten(2, 3)


def packed_store(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """``k``, ``v`` [tokens, kv_heads, head_dim], to ``slots`` int64 [tokens]; as kernels/store_kv.py."""
    k, v = _rows(k), _rows(v)
    tokens, kv_heads, head_dim = k.shape
    _needed(keys.dtype).store(
        _StoreJob(
            k.data_ptr(),
            v.data_ptr(),
            keys.data_ptr(),
            values.data_ptr(),
            slots.data_ptr(),
            k.stride(0),
            v.stride(0),
            tokens,
            kv_heads,
            head_dim,
            keys.shape[2] * PANEL,
        )
    )


def packed_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    sequences: PagedSequences,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    q = _rows(q)
    out = q.new_empty(q.shape)
    tables, tree = sequences.block_tables, sequences.tree
    job = _Job(
        q.data_ptr(),
        out.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        tables.data_ptr(),
        sequences.query_starts.data_ptr(),
        sequences.seq_lens.data_ptr(),
        None if sinks is None else sinks.data_ptr(),
        None if tree is None else tree.branches.data_ptr(),
        None if tree is None else tree.roots.data_ptr(),
        q.stride(0),
        tables.stride(0),
        len(tables),
        q.shape[1],
        keys.shape[1],
        q.shape[2],
        keys.shape[2] * PANEL,
        window or 0,
        scale,
        softcap or 0.0,
    )
    _needed(keys.dtype).attend(job)
    return out


def _rows(x: Tensor) -> Tensor:
    """Heads of a token contiguous; tokens may be strided."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
