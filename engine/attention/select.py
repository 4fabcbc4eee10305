"""Which backend a cache is laid out for."""

from __future__ import annotations

import torch

from engine.attention.backend import AttentionBackend
from engine.attention.native_backend import NativeBackend
from engine.attention.torch_backend import TorchBackend
from engine.attention.triton_backend import TritonBackend
from kernels.launch import on_triton
from kernels.native.attention import packs


def select_backend(
    device: torch.device, dtype: torch.dtype, stored: torch.dtype | None, head_dim: int, block_size: int
) -> AttentionBackend:
    """``dtype``: of queries; ``stored``: of a quantized cache, which on a CPU torch alone reads."""
    quantized = stored is not None
    # Where Triton is forced, the cache is as on a GPU.
    if on_triton(torch.empty(0, device=device)):
        return TritonBackend(device, stored or dtype, quantized=quantized)
    if not quantized and packs(device, dtype, head_dim, block_size):
        return NativeBackend(device, dtype)
    return TorchBackend(device, stored or dtype, quantized=quantized)
