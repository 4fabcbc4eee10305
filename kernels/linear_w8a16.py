"""A matrix product with weights in 8 bits, and a scale for each output.

    out[r, n] = scale[n] * sum over k of x[r, k] * codes[n, k]  + bias[n]

Shapes: ``x`` [rows, in]; ``codes`` int8 [out, in], not repacked; ``scale`` float32 [out]; ``bias``
[out]. kernels/linear_fp8.py has the same kernel for codes that are 8-bit floats.

All codes are exact in ``x``'s dtype, and the scale is applied to float32 sums. The product is bound by reading the
codes: a program reads 128 bytes of each of its outputs in a step, 16 a thread, with the next steps in flight. Up to
``MAX_ROWS`` rows use the kernel, in tiles of 16 rows or, from 17 on, of 32; for more the codes are widened to ``x``'s
dtype for cuBLAS, which sums in a different order. With a given tile size, a row's result depends on that row alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels import launch, split_k
from kernels.launch import Variant, jit, on_triton, tl, triton
from kernels.split_k import finish

STEP = 128
"""Inputs that a program loads at a time."""
MAX_ROWS = {"sm_80": 64, "sm_90": 64, "sm_100": 64, "gfx942": 64}
"""Rows up to which the kernel is used; not measured."""
NATIVE = ("sm_90", "sm_100")
"""Chips with conversion instructions for e4m3; on others its bits are shifted."""


def linear_w8a16_reference(x: Tensor, codes: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    """The scale is applied before the sum, which might overflow float16 otherwise."""
    weight = codes.to(x.dtype).mul_(scale.to(x.dtype)[:, None])
    return functional.linear(x, weight, None if bias is None else bias.to(x.dtype))


def linear_w8a16(
    x: Tensor,
    codes: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    counters: Tensor | None = None,
    *,
    invariant: bool = False,
) -> Tensor:
    """``counters``: from ``counters_w8``, allocated if None. ``invariant``: any number of rows uses the kernel, with
    one tile size."""
    if on_triton(x) and (invariant or len(x) <= MAX_ROWS[launch.arch(x.device)]):
        return linear_w8a16_triton(x, codes, scale, bias, counters, tile=16 if invariant else None)
    return linear_w8a16_reference(x, codes, scale, bias)


@jit(varying=("rows",))
def _linear_w8a16_kernel(
    x,
    codes,
    scales,
    bias,
    pieces,
    counters,
    out,
    rows,
    inputs,
    outputs,
    x_stride,
    steps,
    steps_a_split,
    E4M3: tl.constexpr,
    NATIVE: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    BIAS: tl.constexpr,
    AMD: tl.constexpr,
    STAGES: tl.constexpr,
):
    """``E4M3`` codes come as int8 too: not all chips' compilers have their type."""
    tile, piece, block = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    output = tile * OUTPUTS + tl.arange(0, OUTPUTS)
    row = block * ROWS + tl.arange(0, ROWS)
    dtype: tl.constexpr = x.dtype.element_ty
    x += row.to(tl.int64)[None, :] * x_stride
    codes += output.to(tl.int64)[:, None] * inputs
    total = tl.zeros((OUTPUTS, ROWS), tl.float32)
    stop = tl.minimum(steps, (piece + 1) * steps_a_split)
    for step in tl.range(piece * steps_a_split, stop, num_stages=STAGES):
        k = step * 128 + tl.arange(0, 128)
        weight = tl.load(codes + k[None, :], (output < outputs)[:, None] & (k < inputs)[None, :], other=0)
        numbers = tl.load(x + k[:, None], (k < inputs)[:, None] & (row < rows)[None, :], other=0.0)
        if E4M3:
            if NATIVE:
                # By way of float32: from float16 straight to bfloat16 is one at a time, and slow.
                weight = weight.to(tl.float8e4nv, bitcast=True).to(tl.float16).to(tl.float32)
            else:
                # The sign, and exponent and mantissa at the upper end of float32's: 2^120 times too small.
                bits = ((weight.to(tl.int32) << 24) >> 4) & -0x78100000
                weight = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36
        # The interpreter takes integers for bits of bfloat16; compiled, the way over float32 costs nothing.
        weight = weight.to(tl.float32).to(dtype)
        total = tl.dot(weight, numbers, total, input_precision="ieee")
    total *= tl.load(scales + output, output < outputs, other=0.0)[:, None]
    tile += block * tl.num_programs(0)
    finish(total, bias, pieces, counters, out, row, output, rows, outputs, tile, piece, SPLITS, BIAS, AMD)


@dataclass(frozen=True, slots=True)
class _Launch:
    outputs: int
    """Of a tile. Two warps keep to ``mma.sync``, whose left side comes from registers on all of NVIDIA's chips."""
    warps: int
    stages: int


def _launch(tile: int, arch: str) -> _Launch:
    """By rows in a tile: 8 KB of weights and half as much of ``x`` (or as much) are loaded ahead for each stage."""
    if arch == "gfx942":
        return _Launch(64, 2, 2)
    return _Launch(64, 2, 4 if tile == 16 else 3)


def counters_w8(codes: Tensor) -> Tensor:
    """For all launches with these codes, as long as they follow one another."""
    return split_k.counters(-(-len(codes) // 64) * 4, codes.device)


def linear_w8a16_triton(
    x: Tensor,
    codes: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    counters: Tensor | None = None,
    tile: int | None = None,
) -> Tensor:
    """``codes`` int8 or float8_e4m3fn [out, in]."""
    rows, inputs = x.shape
    outputs = len(codes)
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    if not rows:
        return out
    arch = launch.arch(x.device)
    tile = tile or (16 if rows <= 16 else 32)
    table = _launch(tile, arch)
    tiles, blocks, steps = (
        triton.cdiv(outputs, table.outputs),
        triton.cdiv(rows, tile),
        triton.cdiv(inputs, STEP),
    )
    splits = split_k.split(tiles, steps, arch)
    pieces = out
    if splits.count > 1:
        pieces = torch.empty(splits.count, rows, outputs, dtype=torch.float32, device=x.device)
    if counters is None or len(counters) < tiles * blocks:
        counters = split_k.counters(tiles * blocks, x.device)
    _linear_w8a16_kernel[(tiles, splits.count, blocks)](
        x,
        codes.view(torch.int8),
        scale,
        out if bias is None else bias,
        pieces,
        counters,
        out,
        rows,
        inputs,
        outputs,
        x.stride(0),
        steps,
        splits.steps,
        E4M3=codes.dtype == torch.float8_e4m3fn,
        NATIVE=arch in NATIVE,
        ROWS=tile,
        OUTPUTS=table.outputs,
        SPLITS=splits.count,
        BIAS=bias is not None,
        AMD=arch == "gfx942",
        STAGES=table.stages,
        num_warps=table.warps,
        num_stages=table.stages,
    )
    return out


def variants(arch: str, e4m3: bool = False) -> Iterator[Variant]:
    """Of Llama-3-8B's layers, with the inputs in few pieces and in many."""
    names = ("rows", "inputs", "outputs", "x_stride", "steps", "steps_a_split")
    for dtype, tile, (inputs, outputs) in (
        ("bf16", 16, (4096, 4096)),
        ("bf16", 16, (4096, 28672)),
        ("bf16", 32, (14336, 4096)),
        ("fp16", 16, (4096, 4096)),
    ):
        table = _launch(tile, arch)
        splits = split_k.split(outputs // table.outputs, inputs // STEP, arch)
        yield Variant(
            f"{dtype} rows={tile} splits={splits.count}",
            _linear_w8a16_kernel,
            {
                **dict.fromkeys(("x", "bias", "out"), f"*{dtype}"),
                **dict.fromkeys(("scales", "pieces"), "*fp32"),
                "codes": "*i8",
                "counters": "*i32",
                **dict.fromkeys(names, "i32"),
            },
            {
                "E4M3": e4m3,
                "NATIVE": arch in NATIVE,
                "ROWS": tile,
                "OUTPUTS": table.outputs,
                "SPLITS": splits.count,
                "BIAS": False,
                "AMD": arch == "gfx942",
                "STAGES": table.stages,
            },
            num_warps=table.warps,
            num_stages=table.stages,
            dot=True,
            unaligned=frozenset({"rows", "steps", "steps_a_split"}),
        )
