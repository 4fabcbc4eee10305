"""Norms, rotation and gated activations: operations bound by memory bandwidth."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.bench.case import Case
from kernels.bench.ceilings import COPY
from kernels.bench.rivals import gated_rivals, norm_rivals
from kernels.geglu import geglu
from kernels.rms_norm import add_rms_norm, rms_norm, twice
from kernels.rope import norm_rope, rope
from kernels.swiglu import swiglu

EPS = 1e-6


def rms_norm_cases(tiny: bool) -> Iterator[Case]:
    shapes = (
        [(1, 64), (3, 80)]
        if tiny
        else [(1, 7), (3, 257), (17, 1000), (1, 4096), (64, 4096), (8192, 4096), (8192, 1024)]
    )
    for rows, hidden in shapes:

        def make(device: torch.device, rows: int = rows, hidden: int = hidden) -> tuple[Tensor, ...]:
            x, residual = (torch.randn(rows, hidden, device=device).bfloat16() for _ in range(2))
            return x, residual, twice(torch.randn(hidden, device=device))

        name, moved = f"{rows} x {hidden}", 2 * rows * hidden if hidden >= 1024 or tiny else 0
        yield Case(
            "rms_norm",
            name,
            make,
            lambda x, residual, weight: rms_norm(x, weight, EPS),
            lambda x, residual, weight: _normed(x.double(), weight),
            bytes=2 * moved,
            ceiling=COPY,
            rivals=norm_rivals(EPS) if moved else (),
        )
        yield Case(
            "rms_norm",
            f"{name} + residual",
            make,
            lambda x, residual, weight: add_rms_norm(x, residual, weight, EPS),
            lambda x, residual, weight: (_normed((x + residual).double(), weight), (x + residual).double()),
            bytes=4 * moved,
            ceiling=COPY,
        )


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight[: x.shape[-1]].double()


def rope_cases(tiny: bool) -> Iterator[Case]:
    """Query and key heads are views of one product, which contains the values, too."""
    shapes = (
        [(1, 2, 64, 64), (3, 3, 80, 32)]
        if tiny
        else [(1, 3, 64, 64), (7, 5, 80, 32), (5, 24, 256, 256), (64, 40, 128, 128), (8192, 40, 128, 128)]
    )
    for tokens, heads, head_dim, turned in shapes:

        def make(
            device: torch.device, shape: tuple[int, ...] = (tokens, heads + 2, head_dim), turned: int = turned
        ) -> tuple[Tensor, ...]:
            qkv = torch.randn(shape, device=device).bfloat16()
            angles = torch.randn(shape[0], 1, turned // 2, device=device).repeat(1, 1, 2)
            weight = torch.randn(shape[1] - 2, shape[2], device=device).repeat(1, 2)
            return qkv[:, :-2], angles.cos().bfloat16(), angles.sin().bfloat16(), weight.bfloat16()

        name = f"{tokens} x {heads} x {head_dim}" + (f", {turned} turned" if turned < head_dim else "")
        moved = 4 * tokens * heads * head_dim if tokens >= 64 or tiny else 0
        yield Case(
            "rope",
            name,
            make,
            lambda x, cos, sin, weight: rope(x, cos, sin),
            lambda x, cos, sin, weight: _turned(x.double(), cos.double(), sin.double()),
            bytes=moved,
            ceiling=COPY,
        )
        yield Case(
            "rope",
            f"{name} + norm",
            make,
            lambda x, cos, sin, weight: norm_rope(x, weight, EPS, cos, sin),
            lambda x, cos, sin, weight: _turned(
                _normed(x.double(), weight[:, : x.shape[-1]]), cos.double(), sin.double()
            ),
            bytes=moved,
            ceiling=COPY,
        )


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1] // 2
    low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    c, s = cos[..., :half], sin[..., :half]
    return torch.cat([low * c - high * s, high * c + low * s, rest], -1)


def gated_cases(tiny: bool) -> Iterator[Case]:
    shapes = [(1, 33), (2, 64)] if tiny else [(1, 7), (3, 1025), (1, 14336), (16, 14336), (4096, 14336)]
    for op, run, activation in (("swiglu", swiglu, _silu), ("geglu", geglu, _gelu)):
        for rows, width in shapes:
            yield Case(
                op,
                f"{rows} x {width}",
                lambda device, shape=(rows, 2 * width): (torch.randn(shape, device=device).bfloat16(),),
                run,
                lambda x, activation=activation: (
                    activation(x.double().chunk(2, -1)[0]) * x.double().chunk(2, -1)[1]
                ),
                bytes=6 * rows * width if width >= 14336 or tiny else 0,
                ceiling=COPY,
                rivals=gated_rivals(op) if width >= 14336 or tiny else (),
            )


def _silu(z: Tensor) -> Tensor:
    return z * z.sigmoid()


def _gelu(z: Tensor) -> Tensor:
    return torch.nn.functional.gelu(z, approximate="tanh")
