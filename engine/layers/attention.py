"""Attention over the paged cache: project, rotate, store, attend, project back."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from engine.attention.backend import KVLayer
from engine.attention.metadata import AttentionMetadata
from engine.layers.product import Product
from kernels.rope import rope


class PagedAttention:
    """``x`` [tokens, hidden] → [tokens, hidden].

    ``heads`` and ``kv_heads`` are those of this rank. ``rotate``: turns queries and keys [tokens, heads + kv_heads,
    head_dim], and may normalise them. ``window``, ``softcap`` and ``sinks``: see ``AttentionBackend.forward``.
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
    ) -> None:
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

    def __call__(
        self,
        x: Tensor,
        rotation: tuple[Tensor, ...],
        batch: AttentionMetadata,
        cache: KVLayer,
    ) -> Tensor:
        tokens, heads, kv_heads = x.shape[0], self._heads, self._kv_heads
        qkv = self._qkv(x).view(tokens, heads + 2 * kv_heads, self._head_dim)
        rotated = self._rotate(qkv[:, : heads + kv_heads], *rotation)
        keys, values = rotated[:, heads:], qkv[:, heads + kv_heads :]
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
        return self._out(attended.reshape(tokens, heads * self._head_dim))
