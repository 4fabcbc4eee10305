"""A mixture of experts, computed all at once (https://arxiv.org/abs/2401.04088).

    out[t]      = Σ_e∈top(t) w[t, e] * expert_e(x[t]),    top and w as in kernels/route.py
    expert_e(z) = down[e] · act(gate_up[e] · z),    act(gate, up) = silu(gate) * up, or gelu(gate) * up

Shapes: ``x`` [tokens, hidden]; ``scores`` [tokens, experts]; ``gate_up`` [experts, 2 * width, hidden], the gate in the
first half; ``down`` [experts, hidden, width]. Returns [tokens, hidden].

On a GPU there is no synchronisation with the host. After the launches of kernels/route.py there are three: the two
products, whose grids are large enough for the most tiles that are possible (programs without a tile exit at once), and
the sum. A token's experts are summed in float32 and in the order of their ids, and no sum is split depending on the
batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.geglu import geglu_reference
from kernels.launch import Variant, arch, jit, on_triton, tl, triton
from kernels.route import assign_triton, group, route_reference
from kernels.swiglu import swiglu_reference


def mixture_reference(
    x: Tensor,
    scores: Tensor,
    gate_up: Tensor,
    down: Tensor,
    top_k: int,
    normalise: bool,
    activation: str = "swiglu",
) -> Tensor:
    act = {"swiglu": swiglu_reference, "geglu": geglu_reference}[activation]
    chosen, weights = route_reference(scores, top_k, normalise)
    out = x.new_zeros(x.shape)
    for expert, rows, ranks in group(chosen):
        y = act(x[rows] @ gate_up[expert].T) @ down[expert].T
        out.index_add_(0, rows, y * weights[rows, ranks, None])
    return out


def mixture(
    x: Tensor,
    scores: Tensor,
    gate_up: Tensor,
    down: Tensor,
    top_k: int,
    normalise: bool,
    activation: str = "swiglu",
) -> Tensor:
    """``activation``: swiglu or geglu."""
    path = mixture_triton if on_triton(x) else mixture_reference
    return path(x, scores, gate_up, down, top_k, normalise, activation)


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
    for rank in tl.static_range(TOP):
        pair = row * TOP + rank
        part = tl.load(y + pair * HIDDEN + columns, columns < HIDDEN, other=0.0).to(tl.float32)
        total += part * tl.load(weights + pair)
    tl.store(out + row * HIDDEN + columns, total.to(out.dtype.element_ty), columns < HIDDEN)


@dataclass(frozen=True, slots=True)
class _Tile:
    """The part of a product that one program computes."""

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
"""For few tokens (bound by reading weights), some, and many (prefill)."""


def _tile(chip: str, dtype: torch.dtype, tokens: int, experts: int, top_k: int) -> _Tile:
    if dtype.itemsize > 2:
        return _WIDE
    few, some, many = _TILES[chip]
    # The tokens per expert are unknown on the host: assume an even distribution.
    tokens_per_expert = tokens * top_k / experts
    if tokens <= few.rows or tokens_per_expert <= few.rows / 2:
        return few
    return some if tokens <= some.rows or tokens_per_expert <= some.rows else many


def mixture_triton(
    x: Tensor,
    scores: Tensor,
    gate_up: Tensor,
    down: Tensor,
    top_k: int,
    normalise: bool,
    activation: str = "swiglu",
) -> Tensor:
    tokens, hidden = x.shape
    count, width = down.shape[0], down.shape[2]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not tokens:
        return out
    tile = _tile(arch(x.device), x.dtype, tokens, count, top_k)
    plan = assign_triton(scores, top_k, normalise, tile.rows)

    def product(rows: Tensor, weight: Tensor, result: Tensor, activation: str) -> Tensor:
        blocks = triton.cdiv(weight.shape[1], tile.columns)
        _experts_kernel[(triton.cdiv(plan.max_tiles, tile.group) * tile.group * blocks,)](
            rows,
            weight,
            result,
            plan.order,
            plan.tiles,
            rows.stride(0),
            **_constants(weight.shape[2], weight.shape[1], top_k, activation, tile),
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        return result

    inner = torch.empty(tokens * top_k, width, dtype=x.dtype, device=x.device)
    y = torch.empty(tokens * top_k, hidden, dtype=x.dtype, device=x.device)
    product(product(x, gate_up, inner, activation), down, y, "")
    block = min(1024, triton.next_power_of_2(hidden))
    _sum_kernel[(tokens, triton.cdiv(hidden, block))](
        y, plan.weights, out, HIDDEN=hidden, TOP=top_k, BLOCK=block
    )
    return out


def _constants(wide: int, high: int, top_k: int, activation: str, tile: _Tile) -> dict[str, int | str]:
    return {
        "IN": wide,
        "OUT": high,
        "TOP": top_k,
        "ACTIVATION": activation,
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "DEPTH": tile.depth,
        "GROUP": tile.group,
    }


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    few, some, many = _TILES[arch]
    top_k, hidden, width = 2, 4096, 14336  # Mixtral-8x7B's.
    for tile in (few, some, many):
        for part, wide, high in (("swiglu", hidden, 2 * width), ("", width, hidden)):
            yield Variant(
                f"{part or 'down'} rows={tile.rows}",
                _experts_kernel,
                {
                    **dict.fromkeys(("x", "weight", "out"), "*bf16"),
                    **dict.fromkeys(("order", "tiles"), "*i32"),
                    "x_stride": "i32",
                },
                _constants(wide, high, top_k, part, tile),
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
