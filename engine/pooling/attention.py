"""Attention within each text of a batch, without a KV cache: in both directions, or as decoders have it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.pooling.texts import Texts


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    texts: Texts,
    *,
    scale: float,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """``query`` [tokens, heads, head_dim], ``key`` and ``value`` [tokens, kv_heads, …] → [tokens, heads, as values].

    ``window``: a token sees itself and the ``window - 1`` before it and, where it is not ``causal``, after it.
    ``softcap``: as in ``AttentionBackend.forward``.
    """
    parts, start = [], 0
    for count, length in texts.groups:
        end = start + count * length
        q, k, v = (
            part[start:end].view(count, length, *part.shape[1:]).transpose(1, 2)
            for part in (query, key, value)
        )
        mask = _mask(texts, length, causal, window, query.device)
        if softcap is None:
            plain = mask is None and causal and length > 1
            out = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=plain, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
            )
        else:
            out = _capped(
                q, k, v, _mask(texts, length, causal, window or length, query.device), scale, softcap
            )
        parts.append(out.transpose(1, 2).flatten(0, 1))
        start = end
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _mask(texts: Texts, length: int, causal: bool, window: int | None, device: torch.device) -> Tensor | None:
    """What a token sees, [length, length]; ``None``: all, or all before it if ``causal``."""
    if window is None:
        return None
    key = length, causal, window
    if key not in texts.masks:
        at = torch.arange(length, device=device)
        distance = at[:, None] - at[None, :]
        seen = (distance.abs() if not causal else distance) < window
        texts.masks[key] = seen & (distance >= 0) if causal else seen
    return texts.masks[key]


def _capped(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float
) -> Tensor:
    shared = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    scores = softcap * torch.tanh(query.float() @ key.float().transpose(2, 3) * (scale / softcap))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ value.float()).to(query.dtype)


class PassingLayer:
    """In the place of a layer's KV cache and its backend: keys and values are read in the call that they come in."""

    def __init__(self) -> None:
        self.backend = self
        self._new: tuple[Tensor, Tensor] | None = None

    def store(self, cache: PassingLayer, keys: Tensor, values: Tensor, batch: Texts) -> None:
        self._new = keys, values

    def forward(
        self,
        query: Tensor,
        cache: PassingLayer,
        batch: Texts,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: None = None,
    ) -> Tensor:
        if self._new is None:
            raise ValueError("nothing was stored before")
        (keys, values), self._new = self._new, None
        if keys.shape[-1] < query.shape[-1]:
            # Latents, which are part of the keys, too: see kernels/latent_attention.py.
            keys = torch.cat([keys, values], -1)
        return attend(query, keys, values, batch, scale=scale, causal=True, window=window, softcap=softcap)


@dataclass(slots=True)
class PassingCache:
    """In the place of a ``KVCache``."""

    layers: list[PassingLayer]

    def by_layer(self, batch: Texts) -> Iterable[tuple[PassingLayer, Texts]]:
        return ((layer, batch) for layer in self.layers)
