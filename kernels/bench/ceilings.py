"""Ceilings: what the vendor's libraries reach on the chip, which other cases are compared with."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels.bench.case import Case

COPY, MATMUL = "device copy", "cuBLAS bf16"


PEAKS = {
    # Bytes a second, and dense bfloat16 operations a second, from the data sheets.
    "H100": (3.35e12, 989e12),
    "H200": (4.8e12, 989e12),
    "A100": (2.04e12, 312e12),
    "B200": (8.0e12, 2250e12),
    "MI300X": (5.3e12, 1307e12),
}
"""By a part of the device's name; SXM boards, the A100 with 80 GB."""


def peak(chip: str, of_flops: bool) -> float | None:
    """The chip's data sheet figures; ``None`` if it is not in the table."""
    return next((found[of_flops] for name, found in PEAKS.items() if name in chip), None)


def sdpa(batch: int, length: int) -> str:
    """The name of the ceiling of causal attention."""
    return f"cuDNN SDPA {batch} x {length}"


def cases(tiny: bool) -> Iterator[Case]:
    numbers = 1 << 16 if tiny else 1 << 30

    def copy(source: Tensor, target: Tensor) -> Tensor:
        return target.copy_(source)

    yield Case(
        "ceiling",
        COPY,
        lambda device: (
            torch.randn(numbers, device=device).bfloat16(),
            torch.empty(numbers, dtype=torch.bfloat16, device=device),
        ),
        copy,
        bytes=4 * numbers,
    )
    width = 64 if tiny else 8192
    yield Case(
        "ceiling",
        MATMUL,
        lambda device: tuple(torch.randn(width, width, device=device).bfloat16() for _ in range(2)),
        torch.mm,
        flops=2 * width**3,
    )
    for batch, length in SDPA[tiny]:
        yield Case(
            "ceiling",
            sdpa(batch, length),
            lambda device, shape=(batch, HEADS[tiny], length, 128): tuple(
                torch.randn(shape, device=device).bfloat16() for _ in range(3)
            ),
            _sdpa,
            flops=4 * batch * HEADS[tiny] * 128 * length * (length + 1) // 2,
        )


SDPA = {True: [(1, 16)], False: [(1, 8192), (8, 2048)]}
HEADS = {True: 2, False: 32}
"""As many query heads as KV heads: not all versions support groups, which make little difference here."""


def _sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if not q.is_cuda:
        return scaled_dot_product_attention(q, k, v, is_causal=True)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=True)
