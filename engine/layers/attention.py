"""Attention over the paged cache: project, rotate, store, attend, project back."""

from __future__ import annotations

from torch import Tensor

from engine.layers.attend import AttentionInput, attend
from engine.layers.linear import Linear
from engine.weights.loader import Loader
from engine.worker.kv_cache import KVLayer
from kernels.rope import rope


class PagedAttention:
    """``x`` [tokens, hidden] → [tokens, hidden]."""

    def __init__(self, qkv: Linear, out: Linear, heads: int, kv_heads: int, head_dim: int) -> None:
        self._qkv = qkv
        self._out = out
        self._heads = heads
        self._kv_heads = kv_heads
        self._head_dim = head_dim
        self._scale = head_dim**-0.5

    @classmethod
    def load(
        cls,
        weights: Loader,
        name: str,
        *,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        qkv_bias: bool,
        out_bias: bool,
    ) -> PagedAttention:
        qkv = {
            f"{name}.q_proj": heads * head_dim,
            f"{name}.k_proj": kv_heads * head_dim,
            f"{name}.v_proj": kv_heads * head_dim,
        }
        return cls(
            weights.linear(qkv, hidden, bias=qkv_bias, split="out"),
            weights.linear({f"{name}.o_proj": hidden}, heads * head_dim, bias=out_bias, split="in"),
            heads,
            kv_heads,
            head_dim,
        )

    def __call__(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        batch: AttentionInput,
        cache: KVLayer,
    ) -> Tensor:
        heads, kv_heads = self._heads, self._kv_heads
        qkv = self._qkv(x).view(len(x), heads + 2 * kv_heads, self._head_dim)
        rotated = rope(qkv[:, : heads + kv_heads], *rotation)
        query = rotated[:, :heads]
        cache.store(rotated[:, heads:], qkv[:, heads + kv_heads :], batch.slots)
        return self._out(attend(query, batch, cache, scale=self._scale).view(len(x), heads * self._head_dim))
