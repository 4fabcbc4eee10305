"""Attention over the paged cache: project, rotate, store, attend, project back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.attention.backend import KVLayer
from engine.attention.metadata import AttentionMetadata
from engine.layers.norm import RMSNorm
from engine.layers.product import Product
from kernels.rope import rope


class PagedAttention:
    """``x`` [tokens, hidden] → [tokens, hidden].

    ``value_norm``: of each head of the values.

    ``heads`` and ``kv_heads`` are those of this rank. ``rotate``: turns queries and keys [tokens, heads + kv_heads,
    head_dim], and may normalise them. ``window``, ``softcap`` and ``sinks``: see ``AttentionBackend.forward``.
    ``gated``: ``qkv`` makes a gate for each head before all else, and the sigmoid of it multiplies what is attended.
    ``invariant``: a row's gate is the same to the last bit in any batch.
    """

    def __init__(
        self,
        qkv: Product,
        out: Product,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        scale: float,
        rotate: Callable[..., Tensor] = rope,
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        value_norm: RMSNorm | None = None,
        gated: bool = False,
        invariant: bool = False,
    ) -> None:
        self._gates = heads if gated else 0
        self._invariant = invariant
        self._qkv = qkv
        self._out = out
        self._heads = heads
        self._kv_heads = kv_heads
        self._head_dim = head_dim
        self._scale = scale
        self._rotate = rotate
        self._window = window
        self._softcap = softcap
        self._sinks = sinks
        self._value_norm = value_norm

    def __call__(
        self,
        x: Tensor,
        rotation: tuple[Tensor, ...],
        batch: AttentionMetadata,
        cache: KVLayer,
    ) -> Tensor:
        tokens, heads, kv_heads = x.shape[0], self._heads, self._kv_heads
        qkv = self._qkv(x).view(tokens, self._gates + heads + 2 * kv_heads, self._head_dim)
        gates, qkv = qkv[:, : self._gates], qkv[:, self._gates :]
        rotated = self._rotate(qkv[:, : heads + kv_heads], *rotation)
        keys, values = rotated[:, heads:], qkv[:, heads + kv_heads :]
        if self._value_norm is not None:
            values = self._value_norm(values.reshape(-1, self._head_dim))[0].view(values.shape)
        cache.backend.store(cache, keys, values, batch)
        attended = cache.backend.forward(
            rotated[:, :heads],
            cache,
            batch,
            scale=self._scale,
            window=self._window,
            softcap=self._softcap,
            sinks=self._sinks,
        )
        if self._gates:
            # torch computes what is left of whole vectors otherwise, and a batch's end may be such.
            parts = gates.split(1) if self._invariant else (gates,)
            attended = attended * torch.cat([part.sigmoid() for part in parts])
        return self._out(attended.reshape(tokens, heads * self._head_dim))


class SharedAttention:
    """Attention to the keys and values that an earlier layer has stored: only queries are computed."""

    def __init__(
        self,
        query: Product,
        out: Product,
        heads: int,
        head_dim: int,
        *,
        scale: float,
        rotate: Callable[..., Tensor],
        window: int | None,
    ) -> None:
        self._query = query
        self._out = out
        self._heads = heads
        self._head_dim = head_dim
        self._scale = scale
        self._rotate = rotate
        self._window = window

    def __call__(
        self,
        x: Tensor,
        rotation: tuple[Tensor, ...],
        batch: AttentionMetadata,
        cache: KVLayer,
    ) -> Tensor:
        query = self._query(x).view(len(x), self._heads, self._head_dim)
        attended = cache.backend.forward(
            self._rotate(query, *rotation), cache, batch, scale=self._scale, window=self._window
        )
        return self._out(attended.reshape(len(x), self._heads * self._head_dim))
