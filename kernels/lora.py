"""LoRA for many adapters in one batch (https://arxiv.org/abs/2106.09685, https://arxiv.org/abs/2310.18547).

    y[t] += up[a] · (down[a] · x[t]),    a = index[t]; rows with index -1 are left unchanged, to the bit

Shapes: ``x`` [tokens, in]; ``y`` [tokens, out], updated in slot; ``index`` int32 [tokens]: the row's adapter slot in a
``Bank``: ``down`` [slots, rank, in] and ``up`` [slots, rank, out], with the adapter's scale multiplied into the latter.

Two launches, whose grids depend on shapes alone. The first (shrink) sums over splits of the inputs, whose size depends
on the layer alone; the second (expand) adds up the splits in order, and multiplies. Tiles have the same number of rows
in any batch, and a tile is multiplied once for each adapter in it: by one program for each slot while there are few
tiles, and by a program that loops over several slots where there are many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.launch import Variant, arch, jit, on_triton, tl, triton

BLOCK = 128
"""Outputs of one program, and of one entry of ``Bank.spans``."""
_ROWS = 32
_DEPTH = 128
_RANKS = 16
"""A bank's rank is padded to a multiple of it, so that rows are read 16 bytes at a time."""
_WIDTH = 32
"""Ranks multiplied at a time."""
_PROGRAMS = 256
"""Tiles times slots up to which each slot has a program of its own."""
_STAGES = {"sm_80": 3, "sm_90": 3, "sm_100": 3, "gfx942": 2}


@dataclass(frozen=True, slots=True)
class Prepared:
    """One layer's part of an adapter, as a slot of a ``Bank`` takes it: on the host, for a GPU in pinned memory."""

    down: Tensor
    """[rank, in], in the bank's dtype"""
    up: Tensor
    """[rank, out]"""
    spans: Tensor
    """int32, as a slot of ``Bank.spans``"""


@dataclass(frozen=True, slots=True)
class Bank:
    """One layer's weights of all adapters. Rows beyond a slot's rank are not read."""

    down: Tensor
    """[slots, rank, in]"""
    up: Tensor
    """[slots, rank, out]"""
    ranks: Tensor
    """int32 [slots]; 0: the slot is free."""
    spans: Tensor
    """int32 [slots, ceil(out / BLOCK), 2]: the range of ranks that are nonzero for a block of outputs. Where layers are
    merged ``up`` is block-diagonal, and most of it is zero."""

    @classmethod
    def empty(
        cls,
        slots: int,
        rank: int,
        in_features: int,
        out_features: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Bank:
        rank += -rank % _RANKS
        blocks = -(-out_features // BLOCK)
        return cls(
            torch.zeros(slots, rank, in_features, dtype=dtype, device=device),
            torch.zeros(slots, rank, out_features, dtype=dtype, device=device),
            torch.zeros(slots, dtype=torch.int32, device=device),
            torch.zeros(slots, blocks, 2, dtype=torch.int32, device=device),
        )

    def put(self, slot: int, down: Tensor, up: Tensor) -> None:
        """Loads an adapter: ``down`` [rank, in] and ``up`` [out, rank]."""
        self.place(slot, self.prepare(down, up))

    def prepare(self, down: Tensor, up: Tensor) -> Prepared:
        """What ``place`` copies: all that takes time on the host."""
        used = [(block != 0).any(0).nonzero().flatten().tolist() or [-1] for block in up.split(BLOCK)]
        spans = torch.tensor([(max(0, some[0]), some[-1] + 1) for some in used], dtype=torch.int32)
        parts = [down.to(self.down.dtype), up.T.to(self.up.dtype).contiguous(), spans]
        if self.down.device.type == "cuda":
            parts = [part.pin_memory() for part in parts]
        return Prepared(*parts)

    def place(self, slot: int, adapter: Prepared) -> None:
        """Copies it, on a GPU in the order of its stream: the host does not wait."""
        rank = len(adapter.down)
        self.down[slot, :rank].copy_(adapter.down, non_blocking=True)
        self.up[slot, :rank].copy_(adapter.up, non_blocking=True)
        self.spans[slot].copy_(adapter.spans, non_blocking=True)
        self.ranks[slot].fill_(rank)

    def clear(self, slot: int) -> None:
        self.ranks[slot] = 0
        self.spans[slot] = 0


def lora_reference(y: Tensor, x: Tensor, index: Tensor, bank: Bank) -> None:
    for slot, rank in enumerate(bank.ranks.tolist()):
        rows = (index == slot).nonzero().flatten()
        y.index_add_(0, rows, x[rows] @ bank.down[slot, :rank].T @ bank.up[slot, :rank])


def lora(y: Tensor, x: Tensor, index: Tensor, bank: Bank) -> None:
    (lora_triton if on_triton(x) else lora_reference)(y, x, index, bank)


@jit(varying=("tokens",))
def _shrink_kernel(
    x,
    down,
    index,
    ranks,
    partial,
    tokens,
    slots,
    x_stride,
    IN: tl.constexpr,
    RANK: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """``partial`` float32 [splits, tokens, RANK]: each split's partial sums of ``down · x``."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    row_slots = tl.load(index + rows, rows < tokens, other=-1)
    left = x + rows[:, None].to(tl.int64) * x_stride
    for slot in range(tl.program_id(2), slots, tl.num_programs(2)):
        mine = (row_slots == slot)[:, None]
        if tl.max(tl.max(mine.to(tl.int32), 1), 0) > 0:
            rank = tl.load(ranks + slot)
            for first in range(0, rank, WIDTH):
                columns = (first + tl.arange(0, WIDTH))[None, :].to(tl.int64)
                right = down + (slot * RANK + columns) * IN
                acc = tl.zeros([ROWS, WIDTH], tl.float32)
                for start in range(0, SPLIT, DEPTH):
                    depth = split * SPLIT + start + tl.arange(0, DEPTH)
                    a = tl.load(left + depth[None, :], mine & (depth < IN)[None, :], other=0.0)
                    b = tl.load(right + depth[:, None], (columns < rank) & (depth < IN)[:, None], other=0.0)
                    acc = tl.dot(a, b, acc, input_precision="ieee")
                target = (split * tl.cast(tokens, tl.int64) + rows[:, None]) * RANK + columns
                tl.store(partial + target, acc, mine & (columns < rank))


@jit(varying=("tokens",))
def _expand_kernel(
    y,
    up,
    index,
    spans,
    partial,
    tokens,
    slots,
    splits,
    y_stride,
    OUT: tl.constexpr,
    RANK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    block = tl.program_id(1)
    columns = (block * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    row_slots = tl.load(index + rows, rows < tokens, other=-1)
    target = y + rows[:, None].to(tl.int64) * y_stride + columns
    for slot in range(tl.program_id(2), slots, tl.num_programs(2)):
        mine = (row_slots == slot)[:, None]
        if tl.max(tl.max(mine.to(tl.int32), 1), 0) > 0:
            span = spans + (slot * tl.num_programs(1) + block) * 2
            begin = tl.load(span)
            end = tl.load(span + 1)
            if begin < end:
                acc = tl.zeros([ROWS, COLUMNS], tl.float32)
                for first in range(begin, end, WIDTH):
                    ranks = (first + tl.arange(0, WIDTH)).to(tl.int64)
                    inner = tl.zeros([ROWS, WIDTH], tl.float32)
                    source = partial + rows[:, None].to(tl.int64) * RANK + ranks[None, :]
                    for _ in range(splits):
                        inner += tl.load(source, mine & (ranks < end)[None, :], other=0.0)
                        source += tl.cast(tokens, tl.int64) * RANK
                    b = tl.load(
                        up + (slot * RANK + ranks[:, None]) * OUT + columns,
                        (ranks < end)[:, None] & (columns < OUT),
                        other=0.0,
                    )
                    acc = tl.dot(inner.to(up.dtype.element_ty), b, acc, input_precision="ieee")
                acc += tl.load(target, mine & (columns < OUT), other=0.0).to(tl.float32)
                tl.store(target, acc.to(y.dtype.element_ty), mine & (columns < OUT))


def _split(in_features: int) -> int:
    """Inputs that one program sums: few enough for many programs, and at most 16 splits to add up afterwards."""
    return max(512, triton.next_power_of_2(triton.cdiv(in_features, 16)))


def lora_triton(y: Tensor, x: Tensor, index: Tensor, bank: Bank) -> None:
    tokens, in_features = x.shape
    slots, rank, out_features = bank.up.shape
    if not tokens:
        return
    split = _split(in_features)
    splits, tiles = triton.cdiv(in_features, split), triton.cdiv(tokens, _ROWS)
    slot_programs = min(slots, max(1, _PROGRAMS // tiles))
    stages = _STAGES[arch(x.device)]
    partial = torch.empty(splits, tokens, rank, dtype=torch.float32, device=x.device)
    _shrink_kernel[(tiles, splits, slot_programs)](
        x,
        bank.down,
        index,
        bank.ranks,
        partial,
        tokens,
        slots,
        x.stride(0),
        IN=in_features,
        RANK=rank,
        SPLIT=split,
        ROWS=_ROWS,
        DEPTH=_DEPTH,
        WIDTH=_WIDTH,
        num_stages=stages,
    )
    _expand_kernel[(tiles, triton.cdiv(out_features, BLOCK), slot_programs)](
        y,
        bank.up,
        index,
        bank.spans,
        partial,
        tokens,
        slots,
        splits,
        y.stride(0),
        OUT=out_features,
        RANK=rank,
        ROWS=_ROWS,
        COLUMNS=BLOCK,
        WIDTH=_WIDTH,
        num_stages=stages,
    )


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py. Llama-3-8B's layers, and adapters of up to 64 ranks."""
    common = {"index": "*i32", "partial": "*fp32", "tokens": "i32", "slots": "i32"}
    unaligned = frozenset({"tokens", "slots"})
    for name, wide, high, rank in (
        ("qkv", 4096, 6144, 192),
        ("gate_up", 4096, 28672, 128),
        ("down", 14336, 4096, 64),
    ):
        split = _split(wide)
        yield Variant(
            f"shrink {name}",
            _shrink_kernel,
            {"x": "*bf16", "down": "*bf16", "ranks": "*i32", "x_stride": "i32", **common},
            {"IN": wide, "RANK": rank, "SPLIT": split, "ROWS": _ROWS, "DEPTH": _DEPTH, "WIDTH": _WIDTH},
            num_stages=_STAGES[arch],
            dot=True,
            unaligned=unaligned,
        )
        yield Variant(
            f"expand {name}",
            _expand_kernel,
            {"y": "*bf16", "up": "*bf16", "spans": "*i32", "y_stride": "i32", "splits": "i32", **common},
            {
                "OUT": high,
                "RANK": rank,
                "ROWS": _ROWS,
                "COLUMNS": BLOCK,
                "WIDTH": _WIDTH,
            },
            num_stages=_STAGES[arch],
            dot=True,
            unaligned=unaligned | {"splits"},
        )
