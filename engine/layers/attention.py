"""Attention over the paged cache: project, rotate, store, attend, project back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.layers.linear import Linear
from engine.weights.loader import Loader
from engine.worker.kv_cache import KVLayer
from kernels.paged_decode import paged_decode
from kernels.paged_prefill import paged_prefill
from kernels.rope import rope
from kernels.store_kv import store_kv


@dataclass(slots=True)
class DecodeGroup:
    """Rows ``start`` … ``stop`` of the batch: sequences with one new token each."""

    start: int
    stop: int
    block_tables: Tensor
    seq_lens: Tensor


@dataclass(slots=True)
class PrefillGroup:
    """Rows ``start`` … ``stop``: sequences with several new tokens each; ``query_starts`` counts from ``start``."""

    start: int
    stop: int
    block_tables: Tensor
    query_starts: Tensor
    seq_lens: Tensor


@dataclass(slots=True)
class AttentionInput:
    """What all layers share in one step."""

    slots: Tensor
    """int64 [tokens]: where each token's keys and values go."""
    decodes: list[DecodeGroup]
    prefills: list[PrefillGroup]


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
        store_kv(rotated[:, heads:], qkv[:, heads + kv_heads :], cache.keys, cache.values, batch.slots)
        return self._out(self._attend(query, batch, cache).view(len(x), heads * self._head_dim))

    def _attend(self, query: Tensor, batch: AttentionInput, cache: KVLayer) -> Tensor:
        parts = [
            paged_decode(
                query[group.start : group.stop],
                cache.keys,
                cache.values,
                group.block_tables,
                group.seq_lens,
                self._scale,
            )
            for group in batch.decodes
        ]
        parts += [
            paged_prefill(
                query[group.start : group.stop],
                cache.keys,
                cache.values,
                group.block_tables,
                group.query_starts,
                group.seq_lens,
                self._scale,
            )
            for group in batch.prefills
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)
