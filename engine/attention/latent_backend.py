"""Attention over latents, in plain torch on every device: see kernels/latent_attention.py for the formula.

A layer's ``values`` are its tokens' latents, ``keys`` the one key of each that carries the rotation, both for one head.
Each has a scale of its own in a quantized cache: keys are larger than latents, which are normalised.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.attention.allocation import plain_layer
from engine.attention.backend import KVLayer
from engine.attention.metadata import AttentionMetadata
from engine.attention.torch_backend import TorchBackend
from kernels.latent_attention import latent_decode, latent_prefill

_MAX_GATHERED = 2**18
"""Padded tokens of a decode group on a GPU: some hundred MiB of latents at a time."""


class LatentBackend(TorchBackend):
    """Metadata and stores are the base's."""

    def __init__(self, device: torch.device, dtype: torch.dtype, latent: int, *, quantized: bool) -> None:
        """``dtype``: the cache's; ``latent``: the size of a latent."""
        super().__init__(device, dtype, quantized=quantized)
        self._latent = latent
        self._by_dimension = False
        self._max_gathered = self._max_gathered or _MAX_GATHERED

    def allocate(self, blocks: int, kv_heads: int, block_size: int, head_dim: int) -> KVLayer:
        size = (blocks, kv_heads, block_size, head_dim)
        layer = plain_layer(size, self._device, self._dtype, quantized=self._quantized, values=self._latent)
        return KVLayer(self, *layer)

    def forward(
        self,
        query: Tensor,
        cache: KVLayer,
        batch: AttentionMetadata,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """``query`` [tokens, heads, head_dim + latent] → [tokens, heads, latent]."""
        if window is not None or softcap is not None or sinks is not None:
            raise ValueError("attention over latents has no windows, caps or sinks")
        parts = [
            latent_decode(
                query[group.start : group.stop],
                cache.of(group),
                group.gather_index(1, cache.keys.shape[2], None),
                scale,
            )
            for group in batch.decodes
        ]
        parts += [
            latent_prefill(
                query[group.start : group.stop], cache.of(group), group.query_starts, scale, group.tile
            )
            for group in batch.prefills
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
