"""LoRA for many adapters in one batch (https://arxiv.org/abs/2106.09685, https://arxiv.org/abs/2310.18547).

    y[t] += up[a] · (down[a] · x[t]),    a = index[t]; rows with index -1 stay as they are, to the bit

Shapes: ``x`` [tokens, in]; ``y`` [tokens, out], which is changed; ``index`` int32 [tokens]. The adapters stand in the
places of a ``Bank``: ``down`` [places, rank, in] and ``up`` [places, rank, out], an adapter's scale multiplied into the
latter.

Two launches, whose grids follow from shapes alone. The first sums over pieces of the inputs, of a size that is the
layer's own; the second sums the pieces in their order, and multiplies. Tiles have the same number of rows whatever the
batch, and a tile is multiplied once for each adapter in it: by a program for each place while there are few tiles, and
by one program after the other where there are many.
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
"""What a bank's rank is filled up to a multiple of: rows are then read 16 bytes at a time."""
_WIDTH = 32
"""Ranks multiplied at a time."""
_PROGRAMS = 256
"""Tiles times places up to which each place has a program of its own."""
_STAGES = {"sm_80": 3, "sm_90": 3, "sm_100": 3, "gfx942": 2}


@dataclass(frozen=True, slots=True)
class Bank:
    """The adapters of one layer. What lies beyond a place's rank is not read."""

    down: Tensor
    """[places, rank, in]"""
    up: Tensor
    """[places, rank, out]"""
    ranks: Tensor
    """int32 [places]; 0: nobody is there."""
    spans: Tensor
    """int32 [places, ceil(out / BLOCK), 2]: of the ranks that count for a block of outputs, the first, and the one
    after the last. Where layers are merged ``up`` is block-diagonal, and most of it is zero."""

    @classmethod
    def empty(
        cls,
        places: int,
        rank: int,
        in_features: int,
        out_features: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Bank:
        rank += -rank % _RANKS
        blocks = -(-out_features // BLOCK)
        return cls(
            torch.zeros(places, rank, in_features, dtype=dtype, device=device),
            torch.zeros(places, rank, out_features, dtype=dtype, device=device),
            torch.zeros(places, dtype=torch.int32, device=device),
            torch.zeros(places, blocks, 2, dtype=torch.int32, device=device),
        )

    def put(self, place: int, down: Tensor, up: Tensor) -> None:
        """``down`` [rank, in] and ``up`` [out, rank], as adapters have them."""
        rank = len(down)
        self.down[place, :rank] = down
        self.up[place, :rank] = up.T
        self.ranks[place] = rank
        used = [(block != 0).any(0).nonzero().flatten().tolist() or [-1] for block in up.split(BLOCK)]
        self.spans[place] = torch.tensor([(max(0, some[0]), some[-1] + 1) for some in used])

    def clear(self, place: int) -> None:
        self.ranks[place] = 0
        self.spans[place] = 0


def lora_reference(y: Tensor, x: Tensor, index: Tensor, bank: Bank) -> None:
    for place, rank in enumerate(bank.ranks.tolist()):
        rows = (index == place).nonzero().flatten()
        y.index_add_(0, rows, x[rows] @ bank.down[place, :rank].T @ bank.up[place, :rank])


def lora(y: Tensor, x: Tensor, index: Tensor, bank: Bank) -> None:
    (lora_triton if on_triton(x) else lora_reference)(y, x, index, bank)


@jit(varying=("tokens",))
def _shrink_kernel(
    x,
    down,
    index,
    ranks,
    parts,
    tokens,
    places,
    x_stride,
    IN: tl.constexpr,
    RANK: tl.constexpr,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """``parts`` float32 [splits, tokens, RANK]: of each split of the inputs, its share of ``down · x``."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(1)
    owners = tl.load(index + rows, rows < tokens, other=-1)
    left = x + rows[:, None].to(tl.int64) * x_stride
    for place in range(tl.program_id(2), places, tl.num_programs(2)):
        own = (owners == place)[:, None]
        if tl.max(tl.max(own.to(tl.int32), 1), 0) > 0:
            rank = tl.load(ranks + place)
            for first in range(0, rank, WIDTH):
                columns = (first + tl.arange(0, WIDTH))[None, :].to(tl.int64)
                right = down + (place * RANK + columns) * IN
                total = tl.zeros([ROWS, WIDTH], tl.float32)
                for start in range(0, SPLIT, DEPTH):
                    depth = split * SPLIT + start + tl.arange(0, DEPTH)
                    a = tl.load(left + depth[None, :], own & (depth < IN)[None, :], other=0.0)
                    b = tl.load(right + depth[:, None], (columns < rank) & (depth < IN)[:, None], other=0.0)
                    total = tl.dot(a, b, total, input_precision="ieee")
                target = (split * tl.cast(tokens, tl.int64) + rows[:, None]) * RANK + columns
                tl.store(parts + target, total, own & (columns < rank))


@jit(varying=("tokens",))
def _expand_kernel(
    y,
    up,
    index,
    spans,
    parts,
    tokens,
    places,
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
    owners = tl.load(index + rows, rows < tokens, other=-1)
    target = y + rows[:, None].to(tl.int64) * y_stride + columns
    for place in range(tl.program_id(2), places, tl.num_programs(2)):
        own = (owners == place)[:, None]
        if tl.max(tl.max(own.to(tl.int32), 1), 0) > 0:
            span = spans + (place * tl.num_programs(1) + block) * 2
            begin = tl.load(span)
            end = tl.load(span + 1)
            if begin < end:
                total = tl.zeros([ROWS, COLUMNS], tl.float32)
                for first in range(begin, end, WIDTH):
                    ranks = (first + tl.arange(0, WIDTH)).to(tl.int64)
                    inner = tl.zeros([ROWS, WIDTH], tl.float32)
                    source = parts + rows[:, None].to(tl.int64) * RANK + ranks[None, :]
                    for _ in range(splits):
                        inner += tl.load(source, own & (ranks < end)[None, :], other=0.0)
                        source += tl.cast(tokens, tl.int64) * RANK
                    b = tl.load(
                        up + (place * RANK + ranks[:, None]) * OUT + columns,
                        (ranks < end)[:, None] & (columns < OUT),
                        other=0.0,
                    )
                    total = tl.dot(inner.to(up.dtype.element_ty), b, total, input_precision="ieee")
                total += tl.load(target, own & (columns < OUT), other=0.0).to(tl.float32)
                tl.store(target, total.to(y.dtype.element_ty), own & (columns < OUT))


def _split(in_features: int) -> int:
    """Inputs that one program sums: few enough to have many programs, and at most 16 pieces to sum after."""
    return max(512, triton.next_power_of_2(triton.cdiv(in_features, 16)))


def lora_triton(y: Tensor, x: Tensor, index: Tensor, bank: Bank) -> None:
    tokens, in_features = x.shape
    places, rank, out_features = bank.up.shape
    if not tokens:
        return
    split = _split(in_features)
    splits, tiles = triton.cdiv(in_features, split), triton.cdiv(tokens, _ROWS)
    beside = min(places, max(1, _PROGRAMS // tiles))
    stages = _STAGES[arch(x.device)]
    parts = torch.empty(splits, tokens, rank, dtype=torch.float32, device=x.device)
    _shrink_kernel[(tiles, splits, beside)](
        x,
        bank.down,
        index,
        bank.ranks,
        parts,
        tokens,
        places,
        x.stride(0),
        IN=in_features,
        RANK=rank,
        SPLIT=split,
        ROWS=_ROWS,
        DEPTH=_DEPTH,
        WIDTH=_WIDTH,
        num_stages=stages,
    )
    _expand_kernel[(tiles, triton.cdiv(out_features, BLOCK), beside)](
        y,
        bank.up,
        index,
        bank.spans,
        parts,
        tokens,
        places,
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
    common = {"index": "*i32", "parts": "*fp32", "tokens": "i32", "places": "i32"}
    unaligned = frozenset({"tokens", "places"})
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
