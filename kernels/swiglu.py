"""The gated activation of Llama's MLP (https://arxiv.org/abs/2002.05202).

    out = silu(gate) * up,    silu(z) = z / (1 + e^-z)

Shapes: ``gate_up`` [..., 2 * width], the gate in the first half. Returns [..., width]. The kernel computes in float32
whatever the dtype, and rounds once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.launch import Variant, arch, jit, on_triton, tl, triton
from kernels.native import rows as native

BLOCK = 1024
"""Elements of a program: small enough that one token's MLP fills a chip."""

WARPS = {"sm_80": 4, "sm_90": 4, "sm_100": 4, "gfx942": 2}
"""Warps of a program, with 8 elements a thread: loads of 16 bytes with 16-bit elements."""


def swiglu_reference(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate).mul_(up)


def swiglu(gate_up: Tensor) -> Tensor:
    if on_triton(gate_up):
        return swiglu_triton(gate_up)
    if native.takes(gate_up, gate_up.shape[-1] // 2):
        return native.gated(gate_up)
    return swiglu_reference(gate_up)


@jit
def sigmoid(z):
    """Without overflow of the exponential."""
    small = tl.exp(-tl.abs(z))
    return tl.where(z < 0, small, 1.0) / (1.0 + small)


@jit
def _swiglu_kernel(gate_up, out, width, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    gate = tl.load(gate_up + row * stride + columns, mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + width + columns, mask, other=0.0).to(tl.float32)
    tl.store(out + row * width + columns, (gate * sigmoid(gate) * up).to(out.dtype.element_ty), mask)


def swiglu_triton(gate_up: Tensor) -> Tensor:
    return launch_gated(_swiglu_kernel, gate_up)


def launch_gated(kernel: Any, gate_up: Tensor) -> Tensor:
    """Launches a gated activation's kernel."""
    width = gate_up.shape[-1] // 2
    rows = gate_up.reshape(-1, 2 * width)
    out = torch.empty((*gate_up.shape[:-1], width), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        grid = (len(rows), triton.cdiv(width, BLOCK))
        kernel[grid](rows, out, width, rows.stride(0), BLOCK=BLOCK, num_warps=WARPS[arch(out.device)])
    return out


def gated_variants(kernel: Any, arch: str) -> Iterator[Variant]:
    for dtype in ("bf16", "fp16"):
        yield Variant(
            dtype,
            kernel,
            {"gate_up": f"*{dtype}", "out": f"*{dtype}", "width": "i32", "stride": "i32"},
            {"BLOCK": BLOCK},
            num_warps=WARPS[arch],
        )


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    return gated_variants(_swiglu_kernel, arch)
