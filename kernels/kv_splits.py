"""The splits that decode attention divides a sequence's positions into, and the reduction of their results.

Position ``a`` belongs to split ``a // SPLIT``. A sequence has the splits that its new tokens see any position of, and
at least one. With the splits' results m (the largest score, base 2), l and o (see flash_decoding.py), an output row is

    out = Σ 2^(m[j] - max(m)) o[j] / Σ 2^(m[j] - max(m)) l[j]

with one more term below where its head has a sink: 2^(log2(e) sink - max(m)).

Shapes: the workspace is float32 [splits, new * heads, head_dim + 4]: a row's o, m and l, and two elements of padding.
The splits of all sequences are consecutive, so their offsets follow from the lengths. ``out`` [sequences * new, heads,
head_dim]. Rows of sequences with one split, and of those that do not fit the workspace, are left unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.launch import Variant, arch, jit, tl, triton

_STAGES = {"sm_80": 3, "sm_90": 3, "sm_100": 3, "gfx942": 1}
"""Pipeline stages: twice 32 splits are in flight while others are added up."""


@jit
def first_split(lens, new, SPLIT: tl.constexpr, WINDOW: tl.constexpr):
    """The first split that any of a sequence's new tokens sees."""
    return tl.maximum(lens - new + 1 - WINDOW, 0) // SPLIT if WINDOW else lens * 0


@jit
def count_splits(lens, new, SPLIT: tl.constexpr, WINDOW: tl.constexpr):
    """The number of splits they see, at least one: an empty sequence's zeros have to be written, too."""
    return tl.maximum(tl.cdiv(lens, SPLIT) - first_split(lens, new, SPLIT, WINDOW), 1)


@jit
def item_ends(
    seq_lens, sequences, max_splits, new, SEQUENCES: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr
):
    """int32 [SEQUENCES]: the number of splits up to and including each sequence.

    A sequence whose splits no longer fit the workspace counts as one: a single program per head then reads all of it.
    """
    index = tl.arange(0, SEQUENCES)
    valid = index < sequences
    lengths = tl.load(seq_lens + index, valid, other=0).to(tl.int32)
    counts = tl.where(valid, count_splits(lengths, new, SPLIT, WINDOW), 0)
    fits = tl.cumsum(counts, 0) <= max_splits
    return tl.cumsum(tl.where(fits, counts, tl.minimum(counts, 1)), 0)


@jit
def find_item(ends, item):
    """The sequence that split number ``item`` belongs to, the splits before that sequence, and its own number."""
    passed = ends <= item
    sequence = tl.sum(passed.to(tl.int32), 0)
    before = tl.max(tl.where(passed, ends, 0), 0)
    count = tl.min(tl.where(passed, 2147483647, ends), 0) - before
    return sequence, before, count


_VARYING = ("seq_lens", "sequences", "max_splits", "new")


@jit(varying=_VARYING)
def _reduce_kernel(
    partial,
    seq_lens,
    sinks,
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
        index = tl.arange(0, SEQUENCES)
        earlier = index < sequence
        counts = count_splits(tl.load(seq_lens + index, earlier, other=0).to(tl.int32), new, SPLIT, WINDOW)
        before = tl.sum(tl.where(earlier, counts, 0), 0)
        if before + count <= max_splits:
            dims = tl.arange(0, DIM)
            m_i = tl.full([1], -1e28, tl.float32)
            l_i = tl.zeros([1], tl.float32)
            acc = tl.zeros([DIM], tl.float32)
            for start in tl.range(0, count, 32, num_stages=STAGES):
                splits = start + tl.arange(0, 32)
                mask = splits < count
                rows = (before + splits).to(tl.int64) * (new * HEADS) + row % (new * HEADS)
                results = partial + rows * (HEAD_DIM + 4)
                parts = tl.load(
                    results[:, None] + dims[None, :], mask[:, None] & (dims < HEAD_DIM)[None, :], other=0.0
                )
                m_splits = tl.load(results + HEAD_DIM, mask, other=-1e30)
                l_splits = tl.load(results + HEAD_DIM + 1, mask, other=0.0)
                m_new = tl.maximum(m_i, tl.max(m_splits, 0))
                weights = tl.exp2(m_splits - m_new)
                alpha = tl.exp2(m_i - m_new)
                m_i = m_new
                l_i = l_i * alpha + tl.sum(l_splits * weights, 0)
                acc = acc * alpha + tl.sum(parts * weights[:, None], 0)
            if sinks is not None:
                sink = tl.load(sinks + row % HEADS) * 1.4426950408889634 - m_i
                l_i += tl.exp2(tl.minimum(sink, 126.0))
            acc = acc / tl.where(l_i > 0.0, l_i, 1.0)
            tl.store(out + row.to(tl.int64) * HEAD_DIM + dims, acc.to(out.dtype.element_ty), dims < HEAD_DIM)


def split_size(head_dim: int, itemsize: int) -> int:
    """Positions whose keys take 64 KiB with elements of ``itemsize`` bytes: reading these and their values takes some
    microseconds, far longer than locating a split and writing its result."""
    return 65536 // (triton.next_power_of_2(head_dim) * itemsize)


def max_splits_of(capacity: int, split: int, new: int, window: int | None) -> int:
    """The most splits that a sequence of up to ``capacity`` tokens can have."""
    splits = max(1, triton.cdiv(capacity, split))
    return splits if window is None else min(splits, triton.cdiv(window + new - 1, split) + 1)


def padded_sequences(sequences: int) -> int:
    """``sequences`` rounded up to one of few sizes, so that few kernels are compiled."""
    return 64 if sequences <= 64 else max(1024, triton.next_power_of_2(sequences))


def decode_workspace(
    q: Tensor, k_cache: Tensor, sequences: int, capacity: int, window: int | None = None, limit: int = 8192
) -> Tensor:
    """A workspace for ``sequences`` of up to ``capacity`` tokens, limited to ``limit`` splits.

    A sequence that does not fit is read by one program a head, which is correct but slow. The default limit is 2
    million tokens where a head's key takes 256 bytes; with 32 heads of 128 it takes 138 MB for each new token.
    """
    tokens, heads, head_dim = q.shape
    new = tokens // sequences
    per_sequence = max_splits_of(capacity, split_size(head_dim, k_cache.itemsize), new, window)
    splits = min(sequences * per_sequence, limit)
    return torch.empty(splits, new * heads, head_dim + 4, dtype=torch.float32, device=q.device)


def reduce_splits(
    workspace: Tensor,
    seq_lens: Tensor,
    out: Tensor,
    constants: dict[str, int],
    split: int,
    sinks: Tensor | None = None,
) -> None:
    """Adds up the splits in ``workspace`` into ``out``. ``constants``: those of both kernels, and ``new``."""
    tokens, heads, head_dim = out.shape
    _reduce_kernel[(tokens * heads,)](
        workspace,
        seq_lens,
        sinks,
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
    for dtype, head_dim, sinks in (
        ("bf16", 64, True),
        ("bf16", 64, False),
        ("bf16", 128, False),
        ("bf16", 256, False),
        ("fp16", 80, False),
    ):
        yield Variant(
            f"{dtype} head_dim={head_dim}" + (" sinks" if sinks else ""),
            _reduce_kernel,
            {
                "partial": "*fp32",
                "seq_lens": "*i64",
                **({"sinks": "*fp32"} if sinks else {}),
                "out": f"*{dtype}",
                "sequences": "i32",
                "max_splits": "i32",
                "new": "i32",
            },
            {
                **({} if sinks else {"sinks": None}),
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
