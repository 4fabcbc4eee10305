"""What a backend does: it lays out the cache, writes to it, and attends over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.attention.metadata import AttentionMetadata, DecodeGroup, PrefillGroup
from kernels.paged_kv import PagedKV


@dataclass(frozen=True, slots=True)
class KVLayer:
    """One layer's part of the cache, and the backend that has laid it out."""

    backend: AttentionBackend
    keys: Tensor
    """Blocks first, one more than are handed out; what else is the backend's affair."""
    values: Tensor
    key_scales: Tensor | None = None
    """Of a quantized cache: float32 [blocks + 1, kv_heads, block_size]."""
    value_scales: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All of them, blocks first."""
        found = (self.keys, self.values, self.key_scales, self.value_scales)
        return [tensor for tensor in found if tensor is not None]

    def of(self, group: DecodeGroup | PrefillGroup, *, keys_by_dimension: bool = False) -> PagedKV:
        """What the sequences of ``group`` read."""
        return PagedKV(
            self.keys,
            self.values,
            group.block_tables,
            group.seq_lens,
            self.key_scales,
            self.value_scales,
            keys_by_dimension,
        )


class AttentionBackend(Protocol):
    """One way to keep keys and values in blocks and to attend over them. It fits one kind of cache on one device."""

    def allocate(self, blocks: int, kv_heads: int, block_size: int, head_dim: int) -> KVLayer:
        """Zeros, for one layer."""
        ...

    def store(
        self,
        cache: KVLayer,
        keys: Tensor,
        values: Tensor,
        slots: Tensor,
        places: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """``keys``, ``values`` [tokens, kv_heads, head_dim]; ``slots`` int64 [tokens]: where they go, or as blocks and
        offsets, ``places``, for those who store in many layers."""
        ...

    def forward(
        self,
        query: Tensor,
        cache: KVLayer,
        batch: AttentionMetadata,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """``query`` [tokens, heads, head_dim] → the same shape.

        ``window``: a token sees itself and the ``window - 1`` before it. ``softcap``: scores go through
        ``softcap * tanh(score / softcap)`` before they are masked.
        """
        ...
