"""The choice of an attention backend."""

from __future__ import annotations

import torch

from engine.attention.backend import AttentionBackend
from engine.attention.latent_backend import LatentBackend
from engine.attention.native_backend import NativeBackend
from engine.attention.torch_backend import TorchBackend
from engine.attention.triton_backend import TritonBackend
from engine.errors import StartupError
from kernels.launch import on_triton
from kernels.native.attention import packs


def select_backend(
    device: torch.device,
    dtype: torch.dtype,
    stored: torch.dtype | None,
    head_dim: int,
    block_size: int,
    latent: int | None = None,
) -> AttentionBackend:
    """``dtype``: the queries'; ``stored``: a quantized cache's, which on a CPU only torch reads. ``latent``: as of
    ``KVShape``; torch reads latents on every device. Raises ``StartupError`` for what cannot be stored so."""
    quantized = stored is not None
    if stored == torch.uint8 and (latent is not None or head_dim % 2):
        raise StartupError(
            "--kv-cache-dtype int4 is not supported for this model, which keeps "
            f"{'latents in place of values' if latent is not None else 'heads of an odd size'}: use int8 or fp8."
        )
    if latent is not None:
        return LatentBackend(device, stored or dtype, latent, quantized=quantized)
    # TOLLGATE_KERNELS=triton on a CPU: the layout is the GPU's.
    if on_triton(torch.empty(0, device=device)):
        return TritonBackend(device, stored or dtype, quantized=quantized)
    if not quantized and packs(device, dtype, head_dim, block_size):
        return NativeBackend(device, dtype)
    return TorchBackend(device, stored or dtype, quantized=quantized)
