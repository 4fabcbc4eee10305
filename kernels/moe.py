"""A mixture of experts: which take which tokens, and what they make of them (https://arxiv.org/abs/2401.04088).

    p[t]        = softmax(scores[t])
    out[t]      = Σ_e∈top(t) w[t, e] * expert_e(x[t]),    w[t, e] = p[t, e], or p[t, e] / Σ_top(t) p[t]
    expert_e(z) = down[e] · act(gate_up[e] · z),    act(gate, up) = silu(gate) * up, or gelu(gate) * up

Shapes: ``x`` [tokens, hidden]; ``scores`` [tokens, experts]; ``gate_up`` [experts, 2 * width, hidden], the gate in the
first half; ``down`` [experts, hidden, width]. ``mixture`` returns [tokens, hidden].

``route`` and ``group`` are for experts that are called one after another. ``route`` returns the chosen experts int64
[tokens, top], the likeliest first, and their weights [tokens, top] in the scores' dtype; the softmax is taken in
float32. ``group`` turns the choice round: for each expert that is used, in rising order, its tokens' rows and where
among a row's ``top`` it stands, both int64 [n].

On a GPU nothing waits for the host. Five launches, whose grids follow from shapes alone: the choice; its turning round,
which sorts (token, expert) pairs by expert and cuts them into tiles of one expert each; the two products, whose
programs without a tile leave at once; and the sum. A token's experts are summed in float32 and in the order of their
numbers, and no sum is cut by what the batch holds. Of equally likely experts those with the lowest numbers are taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.geglu import geglu_reference
from kernels.launch import Variant, arch, jit, on_triton, tl, triton
from kernels.swiglu import swiglu_reference

_CHOICES = 2048
"""Scores that one program looks at: those of 32 tokens, or of fewer if there are more than 64 experts."""
_CHOICE_WARPS = 8


def route_reference(scores: Tensor, top: int, normalise: bool) -> tuple[Tensor, Tensor]:
    weights, experts = torch.softmax(scores, dim=-1, dtype=torch.float32).topk(top, dim=-1)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return experts, weights.to(scores.dtype)


def route(scores: Tensor, top: int, normalise: bool) -> tuple[Tensor, Tensor]:
    return route_reference(scores, top, normalise)


def group(experts: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(expert, rows, places)"""
    top = experts.shape[1]
    owners, order = experts.flatten().sort(stable=True)
    used, counts = torch.unique_consecutive(owners, return_counts=True)
    for expert, chosen in zip(used.tolist(), order.split(counts.tolist()), strict=True):
        yield expert, chosen // top, chosen % top


def mixture_reference(
    x: Tensor,
    scores: Tensor,
    gate_up: Tensor,
    down: Tensor,
    top: int,
    normalise: bool,
    activation: str = "swiglu",
) -> Tensor:
    act = {"swiglu": swiglu_reference, "geglu": geglu_reference}[activation]
    chosen, weights = route_reference(scores, top, normalise)
    out = x.new_zeros(x.shape)
    for expert, rows, places in group(chosen):
        y = act(x[rows] @ gate_up[expert].T) @ down[expert].T
        out.index_add_(0, rows, y * weights[rows, places, None])
    return out


def mixture(
    x: Tensor,
    scores: Tensor,
    gate_up: Tensor,
    down: Tensor,
    top: int,
    normalise: bool,
    activation: str = "swiglu",
) -> Tensor:
    """``activation``: swiglu or geglu."""
    path = mixture_triton if on_triton(x) else mixture_reference
    return path(x, scores, gate_up, down, top, normalise, activation)


@jit
def _route_kernel(
    scores,
    experts,
    weights,
    counts,
    tokens,
    scores_stride,
    COUNT: tl.constexpr,
    EXPERTS: tl.constexpr,
    TOP: tl.constexpr,
    NORMALISE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """A chunk's choice, each token's experts in rising order, and how often the chunk took each expert."""
    chunk = tl.program_id(0)
    rows = chunk * CHUNK + tl.arange(0, CHUNK)
    numbers = tl.arange(0, EXPERTS)[None, :]
    inside = (rows < tokens)[:, None]
    score = tl.load(
        scores + rows[:, None].to(tl.int64) * scores_stride + numbers, inside & (numbers < COUNT), other=0.0
    )
    score = tl.where(numbers < COUNT, score.to(tl.float32), float("-inf"))
    chance = tl.exp(score - tl.max(score, 1)[:, None])
    chance = chance / tl.sum(chance, 1)[:, None]
    # What is not a number is never equal to itself: such a row still gets TOP experts, and no more.
    left = tl.where(numbers < COUNT, tl.where(chance == chance, chance, 0.0), -1.0)
    taken = tl.zeros([CHUNK, EXPERTS], tl.int32)
    for _ in tl.static_range(TOP):
        best = tl.where(left == tl.max(left, 1)[:, None], numbers, EXPERTS)
        picked = numbers == tl.min(best, 1)[:, None]
        taken = tl.where(picked, 1, taken)
        left = tl.where(picked, -1.0, left)
    weight = tl.where(taken > 0, chance, 0.0)
    if NORMALISE:
        weight = weight / tl.sum(weight, 1)[:, None]
    pairs = rows[:, None] * TOP + tl.cumsum(taken, 1) - taken
    chosen = (taken > 0) & inside
    tl.store(experts + pairs, tl.broadcast_to(numbers, [CHUNK, EXPERTS]), chosen)
    tl.store(weights + pairs, weight, chosen)
    tl.store(counts + chunk * EXPERTS + tl.arange(0, EXPERTS), tl.sum(chosen.to(tl.int32), 0))


@jit
def _sort_kernel(
    experts,
    counts,
    order,
    tiles,
    tokens,
    chunks,
    EXPERTS: tl.constexpr,
    TOP: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """``order``: pairs (token * TOP + place) by expert, then by token. ``tiles``: how many there are; then of each
    the expert, its first pair in ``order``, and the pair after its last."""
    chunk = tl.program_id(0)
    numbers = tl.arange(0, EXPERTS)
    total = tl.zeros([EXPERTS], tl.int32)
    before = tl.zeros([EXPERTS], tl.int32)
    for start in range(0, chunks, CHUNK):
        other = start + tl.arange(0, CHUNK)[:, None]
        count = tl.load(counts + other * EXPERTS + numbers[None, :], other < chunks, other=0)
        total += tl.sum(count, 0)
        before += tl.sum(tl.where(other < chunk, count, 0), 0)
    end = tl.cumsum(total, 0)

    rows = chunk * CHUNK + tl.arange(0, CHUNK)
    taken = tl.zeros([CHUNK, EXPERTS], tl.int32)
    for place in tl.static_range(TOP):
        expert = tl.load(experts + rows * TOP + place, rows < tokens, other=-1)
        taken += (expert[:, None] == numbers[None, :]).to(tl.int32)
    pairs = rows[:, None] * TOP + tl.cumsum(taken, 1) - taken
    tl.store(order + (end - total + before)[None, :] + tl.cumsum(taken, 0) - taken, pairs, taken > 0)

    if chunk == 0:
        needed = (total + ROWS - 1) // ROWS
        last = tl.cumsum(needed, 0)
        tl.store(tiles, tl.sum(needed, 0))
        for i in range(tl.max(needed, 0)):
            tile = tiles + 1 + 3 * (last - needed + i)
            first = end - total + i * ROWS
            tl.store(tile, numbers, i < needed)
            tl.store(tile + 1, first, i < needed)
            tl.store(tile + 2, tl.minimum(first + ROWS, end), i < needed)


@jit
def _experts_kernel(
    x,
    weight,
    out,
    order,
    tiles,
    x_stride,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    TOP: tl.constexpr,
    ACTIVATION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    GROUP: tl.constexpr,
):
    """With an ``ACTIVATION`` tokens come in and go out sorted, half as wide; without, sorted in and by pairs out."""
    blocks: tl.constexpr = (OUT + COLUMNS - 1) // COLUMNS
    # GROUP tiles, mostly of one expert, take the same of its weights one after another, while the L2 has them.
    program = tl.program_id(0)
    tile = program // (GROUP * blocks) * GROUP + program % GROUP
    block = program // GROUP % blocks
    if tile >= tl.load(tiles):
        return
    expert = tl.load(tiles + 1 + 3 * tile).to(tl.int64)
    slots = tl.load(tiles + 2 + 3 * tile) + tl.arange(0, ROWS)
    inside = slots < tl.load(tiles + 3 + 3 * tile)
    pairs = tl.load(order + slots, inside, other=0)
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    if ACTIVATION != "":
        rows, targets = pairs // TOP, slots
        # Gate and up in turn, so that one thread has both.
        column = column // 2 + column % 2 * (OUT // 2)
    else:
        rows, targets = slots, pairs
    column = tl.where(block * COLUMNS + tl.arange(0, COLUMNS) < OUT, column, 0)
    depth = tl.arange(0, DEPTH)
    left = x + rows[:, None].to(tl.int64) * x_stride + depth[None, :]
    right = weight + expert * (OUT * IN) + column[None, :] * IN + depth[:, None]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, IN, DEPTH):
        if IN % DEPTH == 0:
            a = tl.load(left, inside[:, None], other=0.0)
            b = tl.load(right)
        else:
            a = tl.load(left, inside[:, None] & (depth < IN - start)[None, :], other=0.0)
            b = tl.load(right, (depth < IN - start)[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
        left += DEPTH
        right += DEPTH
    if ACTIVATION != "":
        gate, up = tl.split(tl.reshape(total, [ROWS, COLUMNS // 2, 2]))
        if ACTIVATION == "swiglu":
            result = gate * tl.sigmoid(gate) * up
        else:
            # 1 + tanh(z) = 2 * sigmoid(2 z)
            result = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * up
        width: tl.constexpr = OUT // 2
        columns = block * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
    else:
        result = total
        width: tl.constexpr = OUT
        columns = block * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(
        out + targets[:, None].to(tl.int64) * width + columns[None, :],
        result.to(out.dtype.element_ty),
        inside[:, None] & (columns < width)[None, :],
    )


@jit
def _sum_kernel(y, weights, out, HIDDEN: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for place in tl.static_range(TOP):
        pair = row * TOP + place
        part = tl.load(y + pair * HIDDEN + columns, columns < HIDDEN, other=0.0).to(tl.float32)
        total += part * tl.load(weights + pair)
    tl.store(out + row * HIDDEN + columns, total.to(out.dtype.element_ty), columns < HIDDEN)


@dataclass(frozen=True, slots=True)
class _Tile:
    """How much of a product one program computes."""

    rows: int
    columns: int
    depth: int
    group: int
    warps: int
    stages: int


_WIDE = _Tile(16, 64, 64, 1, 4, 2)
"""For float32, which has no matrix instructions here."""
_TILES = {
    "sm_80": (_Tile(16, 64, 128, 1, 4, 4), _Tile(64, 128, 64, 4, 4, 4), _Tile(128, 128, 64, 8, 8, 3)),
    "sm_90": (_Tile(16, 64, 128, 1, 4, 4), _Tile(64, 128, 64, 4, 4, 4), _Tile(128, 256, 64, 8, 8, 3)),
    "sm_100": (_Tile(16, 64, 128, 1, 4, 4), _Tile(64, 128, 64, 4, 4, 4), _Tile(128, 256, 64, 8, 8, 3)),
    "gfx942": (_Tile(16, 64, 128, 1, 4, 2), _Tile(64, 128, 64, 4, 4, 2), _Tile(128, 128, 64, 8, 8, 2)),
}
"""For decodes, where weights are what is read; for many of them; for prompts."""


def _tile(chip: str, dtype: torch.dtype, tokens: int, experts: int, top: int) -> _Tile:
    if dtype.itemsize > 2:
        return _WIDE
    few, some, many = _TILES[chip]
    # The fewest that an expert can have is not known here; what it has if all have the same is.
    share = tokens * top / experts
    if tokens <= few.rows or share <= few.rows / 2:
        return few
    return some if tokens <= some.rows or share <= some.rows else many


def _chunk(experts: int) -> int:
    return max(1, min(32, _CHOICES // experts))


def mixture_triton(
    x: Tensor,
    scores: Tensor,
    gate_up: Tensor,
    down: Tensor,
    top: int,
    normalise: bool,
    activation: str = "swiglu",
) -> Tensor:
    tokens, hidden = x.shape
    count, width = down.shape[0], down.shape[2]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not tokens:
        return out
    tile = _tile(arch(x.device), x.dtype, tokens, count, top)
    pairs, experts = tokens * top, triton.next_power_of_2(count)
    chunk = _chunk(experts)
    chunks = triton.cdiv(tokens, chunk)
    # As many as there can be: each expert in use has fewer than ``tile.rows`` rows to spare.
    most = (pairs + min(count, pairs) * (tile.rows - 1)) // tile.rows

    def ints(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=torch.int32, device=x.device)

    chosen, counts, order, tiles = ints(pairs), ints(chunks, experts), ints(pairs), ints(1 + 3 * most)
    weights = torch.empty(pairs, dtype=torch.float32, device=x.device)
    _route_kernel[(chunks,)](
        scores,
        chosen,
        weights,
        counts,
        tokens,
        scores.stride(0),
        COUNT=count,
        EXPERTS=experts,
        TOP=top,
        NORMALISE=normalise,
        CHUNK=chunk,
        num_warps=_CHOICE_WARPS,
    )
    _sort_kernel[(chunks,)](
        chosen,
        counts,
        order,
        tiles,
        tokens,
        chunks,
        EXPERTS=experts,
        TOP=top,
        CHUNK=chunk,
        ROWS=tile.rows,
        num_warps=_CHOICE_WARPS,
    )

    def product(rows: Tensor, weight: Tensor, result: Tensor, activation: str) -> Tensor:
        blocks = triton.cdiv(weight.shape[1], tile.columns)
        _experts_kernel[(triton.cdiv(most, tile.group) * tile.group * blocks,)](
            rows,
            weight,
            result,
            order,
            tiles,
            rows.stride(0),
            **_constants(weight.shape[2], weight.shape[1], top, activation, tile),
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        return result

    inner = torch.empty(pairs, width, dtype=x.dtype, device=x.device)
    y = torch.empty(pairs, hidden, dtype=x.dtype, device=x.device)
    product(product(x, gate_up, inner, activation), down, y, "")
    block = min(1024, triton.next_power_of_2(hidden))
    _sum_kernel[(tokens, triton.cdiv(hidden, block))](y, weights, out, HIDDEN=hidden, TOP=top, BLOCK=block)
    return out


def _constants(wide: int, high: int, top: int, activation: str, tile: _Tile) -> dict[str, int | str]:
    return {
        "IN": wide,
        "OUT": high,
        "TOP": top,
        "ACTIVATION": activation,
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "DEPTH": tile.depth,
        "GROUP": tile.group,
    }


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    few, some, many = _TILES[arch]
    models = (
        ("Mixtral-8x7B", 8, 2, 4096, 14336, (few, some, many)),
        ("Qwen3-30B", 128, 8, 2048, 768, (few,)),
    )
    for name, count, top, hidden, width, tiles in models:
        routed = {"EXPERTS": count, "TOP": top, "CHUNK": _chunk(count)}
        yield Variant(
            f"route {name}",
            _route_kernel,
            {
                "scores": "*bf16",
                "experts": "*i32",
                "weights": "*fp32",
                "counts": "*i32",
                "tokens": "i32",
                "scores_stride": "i32",
            },
            {"COUNT": count, "NORMALISE": True, **routed},
            num_warps=_CHOICE_WARPS,
            unaligned=frozenset({"tokens"}),
        )
        yield Variant(
            f"sort {name}",
            _sort_kernel,
            {
                **dict.fromkeys(("experts", "counts", "order", "tiles"), "*i32"),
                "tokens": "i32",
                "chunks": "i32",
            },
            {"ROWS": few.rows, **routed},
            num_warps=_CHOICE_WARPS,
            unaligned=frozenset({"tokens", "chunks"}),
        )
        for tile in tiles:
            for part, wide, high in (("swiglu", hidden, 2 * width), ("", width, hidden)):
                yield Variant(
                    f"{part or 'down'} {name} rows={tile.rows}",
                    _experts_kernel,
                    {
                        **dict.fromkeys(("x", "weight", "out"), "*bf16"),
                        **dict.fromkeys(("order", "tiles"), "*i32"),
                        "x_stride": "i32",
                    },
                    _constants(wide, high, top, part, tile),
                    num_warps=tile.warps,
                    num_stages=tile.stages,
                    dot=True,
                )
    yield Variant(
        "sum",
        _sum_kernel,
        {"y": "*bf16", "weights": "*fp32", "out": "*bf16"},
        {"HIDDEN": 4096, "TOP": 2, "BLOCK": 1024},
    )
