"""A matrix product with weights in 8-bit floats (e4m3), and a scale for each output.

    out[r, n] = scale[n] * sum over k of x[r, k] * codes[n, k]  + bias[n]

Shapes: ``x`` [rows, in]; ``codes`` float8_e4m3fn [out, in]; ``scale`` float32 [out], one scale a tensor expanded to
it; ``bias`` [out].

Up to ``MAX_ROWS`` rows the product is bound by reading the codes, so ``x`` is not quantized: the kernel of
linear_w8a16.py widens the codes, without loss, on all chips, and needs no launch that computes scales of rows. With
more rows it is bound by matrix instructions. On chips that have them for e4m3 (sm_90, sm_100) each row of ``x`` is
quantized to e4m3 with its own scale, ``max / 448``, in one launch, and multiplied by ``torch._scaled_mm``; out and in
must be multiples of 16. Otherwise, and on sm_80 and gfx942 (whose e4m3fnuz differs), the codes are widened to ``x``'s
dtype for cuBLAS or hipBLAS. NaN codes are not supported.

A row's result depends on that row alone within each of three ranges: up to 16 rows, up to ``MAX_ROWS``, and more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from kernels import launch, linear_w8a16
from kernels.launch import Variant, jit, on_triton, tl, triton
from kernels.linear_w8a16 import NATIVE, linear_w8a16_reference, linear_w8a16_triton

MAX_ROWS = {"sm_80": 64, "sm_90": 32, "sm_100": 32, "gfx942": 64}
"""Rows up to which the kernel is used; not measured."""
LARGEST = 448.0
"""The largest e4m3 value."""


def quantize_rows_reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """float8_e4m3fn of ``x``'s shape, and its scales, float32 [rows, 1]."""
    wide = x.float()
    scale = wide.abs().amax(1, keepdim=True).clamp_min(1e-12) / LARGEST
    return (wide / scale).to(torch.float8_e4m3fn), scale


def linear_fp8(
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
    if not on_triton(x):
        return linear_w8a16_reference(x, codes, scale, bias)
    arch = launch.arch(x.device)
    if invariant or len(x) <= MAX_ROWS[arch]:
        return linear_w8a16_triton(x, codes, scale, bias, counters, tile=16 if invariant else None)
    if arch not in NATIVE or len(codes) % 16 or codes.shape[1] % 16:
        return linear_w8a16_reference(x, codes, scale, bias)
    rows, step = quantize_rows_triton(x)
    product = torch._scaled_mm(rows, codes.t(), step, scale[None], out_dtype=torch.bfloat16).to(x.dtype)
    return product if bias is None else product + bias


@jit
def _quantize_rows_kernel(x, out, scales, x_stride, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    wide = tl.load(x + row * x_stride + columns, columns < COLUMNS, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(wide), 0), 1e-12) / 448.0
    tl.store(scales + row, scale)
    tl.store(out + row * COLUMNS + columns, (wide / scale).to(tl.float8e4nv), columns < COLUMNS)


def _warps(columns: int) -> int:
    """A row is kept in the registers of one program: up to 32 numbers a thread."""
    return max(1, min(16, triton.next_power_of_2(columns) // 512))


def quantize_rows_triton(x: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = x.shape
    x = x if x.stride(1) == 1 else x.contiguous()
    out = torch.empty(rows, columns, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    if rows:
        _quantize_rows_kernel[(rows,)](
            x,
            out,
            scales,
            x.stride(0),
            COLUMNS=columns,
            BLOCK=triton.next_power_of_2(columns),
            num_warps=_warps(columns),
        )
    return out, scales


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    for variant in linear_w8a16.variants(arch, e4m3=True):
        if variant.types["x"] == "*bf16":
            yield replace(variant, name=f"e4m3 {variant.name}")
    for columns in (4096, 14336) if arch in NATIVE else ():
        yield Variant(
            f"rows bf16 in={columns}",
            _quantize_rows_kernel,
            {"x": "*bf16", "out": "*fp8e4nv", "scales": "*fp32", "x_stride": "i32"},
            {"COLUMNS": columns, "BLOCK": triton.next_power_of_2(columns)},
            num_warps=_warps(columns),
        )
