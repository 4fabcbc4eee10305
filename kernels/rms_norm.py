"""Root-mean-square normalisation, with the residual sum fused in (https://arxiv.org/abs/1910.07467).

    s = x + residual;   out = s / sqrt(mean(s²) + eps) * weight

Shapes: ``x``, ``residual`` [..., hidden]; ``weight`` float32 [2 * hidden], the weight ``twice``. The mean is computed
in float32 whatever the dtype.

On a CPU it is computed as a layer norm of ``[s, -s]``, whose mean is zero and whose variance is ``mean(s²)``: this is
one torch operation instead of five to eight (5 µs instead of 13 for a row of 1,024, torch 2.13), and a row's result
depends on that row alone. In bfloat16 it is C (kernels/native/rows.py) where available. On a GPU one program reads a
row once and keeps it in registers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.launch import Variant, arch, jit, on_triton, tl, triton
from kernels.native import rows as native

WIDEST = 16384
"""Hidden sizes up to which a row is kept in the registers of one program."""


def twice(weight: Tensor) -> Tensor:
    """The weight, repeated, as the functions here expect it."""
    return torch.cat([weight, weight], -1).float()


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight[: x.shape[-1]]).to(x.dtype)


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    added = x + residual
    return rms_norm_reference(added, weight, eps), added


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if on_triton(x) and x.shape[-1] <= WIDEST:
        return rms_norm_triton(x, weight, eps)
    if x.device.type != "cpu":
        return rms_norm_reference(x, weight, eps)
    if native.takes(x, x.shape[-1]):
        return native.rms_norm(x, None, weight, eps)[0]
    size = x.shape[-1]
    return torch.layer_norm(torch.cat([x, -x], -1), (2 * size,), weight, None, eps)[..., :size]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Returns the normalised sum, and the sum itself: the next residual."""
    if on_triton(x) and x.shape[-1] <= WIDEST:
        return add_rms_norm_triton(x, residual, weight, eps)
    if native.takes(x, x.shape[-1]):
        return native.rms_norm(x, residual, weight, eps)
    added = x + residual
    return rms_norm(added, weight, eps), added


@jit
def _rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    added,
    x_stride,
    residual_stride,
    eps,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < HIDDEN
    wide = tl.load(x + row * x_stride + columns, mask, other=0.0).to(tl.float32)
    if ADD:
        wide += tl.load(residual + row * residual_stride + columns, mask, other=0.0).to(tl.float32)
        rounded = wide.to(out.dtype.element_ty)
        tl.store(added + row * HIDDEN + columns, rounded, mask)
        wide = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / HIDDEN + eps)
    scaled = wide * scale * tl.load(weight + columns, mask, other=0.0)
    tl.store(out + row * HIDDEN + columns, scaled.to(out.dtype.element_ty), mask)


def _warps(hidden: int, arch: str) -> int:
    """For 16 numbers of a row a thread, which loads 16 bytes at a time; no more than 512 threads."""
    threads, lanes = triton.next_power_of_2(hidden) // 16, 64 if arch == "gfx942" else 32
    return max(1, min(threads, 512) // lanes)


def rms_norm_triton(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    hidden = x.shape[-1]
    rows = x.reshape(-1, hidden)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(hidden)
    if len(rows):
        _rms_norm_kernel[(len(rows),)](
            rows,
            rows,
            weight,
            out,
            out,
            rows.stride(0),
            0,
            eps,
            HIDDEN=hidden,
            BLOCK=block,
            ADD=False,
            num_warps=_warps(hidden, arch(out.device)),
        )
    return out


def add_rms_norm_triton(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    hidden = x.shape[-1]
    rows, residuals = x.reshape(-1, hidden), residual.reshape(-1, hidden)
    out, added = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    if len(rows):
        _rms_norm_kernel[(len(rows),)](
            rows,
            residuals,
            weight,
            out,
            added,
            rows.stride(0),
            residuals.stride(0),
            eps,
            HIDDEN=hidden,
            BLOCK=triton.next_power_of_2(hidden),
            ADD=True,
            num_warps=_warps(hidden, arch(out.device)),
        )
    return out, added


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    for dtype in ("bf16", "fp16"):
        for hidden in (1024, 4096):
            for add in (False, True):
                pointers = dict.fromkeys(("x", "residual", "out", "added"), f"*{dtype}")
                yield Variant(
                    f"{dtype} hidden={hidden}{' add' if add else ''}",
                    _rms_norm_kernel,
                    {
                        **pointers,
                        "weight": "*fp32",
                        "x_stride": "i32",
                        "residual_stride": "i32",
                        "eps": "fp32",
                    },
                    {"HIDDEN": hidden, "BLOCK": triton.next_power_of_2(hidden), "ADD": add},
                    num_warps=_warps(hidden, arch),
                )
