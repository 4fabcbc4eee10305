"""The splits of a paged cache's positions that decode attention is computed in, and the sum of their results.

Position ``a`` is in split ``a // SPLIT``. Of a sequence those splits count that its new tokens see any of, and at least
one. With a split's results m (the largest score, in bits), l and o (see flash_decoding.py), an output row is

    out = Σ 2^(m[j] - max(m)) o[j] / Σ 2^(m[j] - max(m)) l[j]

Shapes: the workspace is float32 [splits, new * heads, head_dim + 4], a row's o, m and l, and two unused; the splits of
all sequences lie one after another, so that their places follow from the lengths. ``out`` [sequences * new, heads,
head_dim]. The rows of sequences of one split, and of those that do not fit the workspace, are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.launch import Variant, arch, jit, tl, triton

_STAGES = {"sm_80": 3, "sm_90": 3, "sm_100": 3, "gfx942": 1}
"""Of the pipeline that reads results: two times 32 splits are on their way while others are added."""


@jit
def first_split(lens, new, SPLIT: tl.constexpr, WINDOW: tl.constexpr):
    """The first split that a sequence's new tokens see."""
    return tl.maximum(lens - new + 1 - WINDOW, 0) // SPLIT if WINDOW else lens * 0


@jit
def count_splits(lens, new, SPLIT: tl.constexpr, WINDOW: tl.constexpr):
    """How many they see: at least one, which writes an empty slot's zeros."""
    return tl.maximum(tl.cdiv(lens, SPLIT) - first_split(lens, new, SPLIT, WINDOW), 1)


_VARYING = ("seq_lens", "sequences", "max_splits", "new")


@jit(varying=_VARYING)
def _reduce_kernel(
    partial,
    seq_lens,
    out,
    sequences,
    max_splits,
    new,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    SEQUENCES: tl.constexpr,
    DIM: tl.constexpr,
    SPLIT: tl.constexpr,
    STAGES: tl.constexpr,
):
    row = tl.program_id(0)
    sequence = row // (new * HEADS)
    count = count_splits(tl.load(seq_lens + sequence).to(tl.int32), new, SPLIT, WINDOW)
    if count > 1:
        slots = tl.arange(0, SEQUENCES)
        used = slots < sequence
        counts = count_splits(tl.load(seq_lens + slots, used, other=0).to(tl.int32), new, SPLIT, WINDOW)
        before = tl.sum(tl.where(slots < sequence, counts, 0), 0)
        if before + count <= max_splits:
            dims = tl.arange(0, DIM)
            m_i = tl.full([1], -1e28, tl.float32)
            l_i = tl.zeros([1], tl.float32)
            acc = tl.zeros([DIM], tl.float32)
            for at in tl.range(0, count, 32, num_stages=STAGES):
                splits = at + tl.arange(0, 32)
                inside = splits < count
                rows = (before + splits).to(tl.int64) * (new * HEADS) + row % (new * HEADS)
                results = partial + rows * (HEAD_DIM + 4)
                parts = tl.load(
                    results[:, None] + dims[None, :], inside[:, None] & (dims < HEAD_DIM)[None, :], other=0.0
                )
                m_splits = tl.load(results + HEAD_DIM, inside, other=-1e30)
                l_splits = tl.load(results + HEAD_DIM + 1, inside, other=0.0)
                m_new = tl.maximum(m_i, tl.max(m_splits, 0))
                weights = tl.exp2(m_splits - m_new)
                alpha = tl.exp2(m_i - m_new)
                m_i = m_new
                l_i = l_i * alpha + tl.sum(l_splits * weights, 0)
                acc = acc * alpha + tl.sum(parts * weights[:, None], 0)
            acc = acc / tl.where(l_i > 0.0, l_i, 1.0)
            tl.store(out + row.to(tl.int64) * HEAD_DIM + dims, acc.to(out.dtype.element_ty), dims < HEAD_DIM)


def split_size(head_dim: int, itemsize: int) -> int:
    """64 KiB of keys of numbers of ``itemsize`` bytes: reading these and their values takes some microseconds, far
    longer than to find a split and to write its result."""
    return 65536 // (triton.next_power_of_2(head_dim) * itemsize)


def most_splits(capacity: int, split: int, new: int, window: int | None) -> int:
    """That a sequence of up to ``capacity`` tokens has."""
    most = max(1, triton.cdiv(capacity, split))
    return most if window is None else min(most, triton.cdiv(window + new - 1, split) + 1)


def slots_for(sequences: int) -> int:
    """The sequences that a kernel is compiled for: few numbers, so that it is few kernels."""
    return 64 if sequences <= 64 else max(1024, triton.next_power_of_2(sequences))


def decode_workspace(
    q: Tensor, k_cache: Tensor, sequences: int, capacity: int, window: int | None = None, limit: int = 8192
) -> Tensor:
    """Room for the results of ``sequences`` of up to ``capacity`` tokens, but for no more than ``limit`` splits: a
    sequence that finds no room left is read by one program a head, which is right, and slow. The default is 2 million
    tokens with keys of 256 bytes a head, and with 32 heads of 128 takes 138 MB for each new token."""
    tokens, heads, head_dim = q.shape
    new = tokens // sequences
    most = most_splits(capacity, split_size(head_dim, k_cache.itemsize), new, window)
    splits = min(sequences * most, limit)
    return torch.empty(splits, new * heads, head_dim + 4, dtype=torch.float32, device=q.device)


def reduce_splits(
    workspace: Tensor, seq_lens: Tensor, out: Tensor, constants: dict[str, int], split: int
) -> None:
    """``constants``: those that both kernels have, and ``new``."""
    tokens, heads, head_dim = out.shape
    _reduce_kernel[(tokens * heads,)](
        workspace,
        seq_lens,
        out,
        len(seq_lens),
        len(workspace),
        **constants,
        DIM=triton.next_power_of_2(head_dim),
        SPLIT=split,
        STAGES=_STAGES[arch(out.device)],
        num_warps=4,
    )


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    for dtype, head_dim in (("bf16", 64), ("bf16", 128), ("bf16", 256), ("fp16", 80)):
        yield Variant(
            f"{dtype} head_dim={head_dim}",
            _reduce_kernel,
            {
                "partial": "*fp32",
                "seq_lens": "*i64",
                "out": f"*{dtype}",
                "sequences": "i32",
                "max_splits": "i32",
                "new": "i32",
            },
            {
                "HEADS": 32,
                "HEAD_DIM": head_dim,
                "WINDOW": 0,
                "SEQUENCES": 1024,
                "DIM": triton.next_power_of_2(head_dim),
                "SPLIT": split_size(head_dim, 2),
                "STAGES": _STAGES[arch],
            },
            num_warps=4,
            unaligned=frozenset(_VARYING),
        )
