"""What an attention backend does: it owns the KV cache's layout, writes to the cache, and attends over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from engine.attention.metadata import AttentionMetadata, CommonAttentionMetadata, DecodeGroup, PrefillGroup
from kernels.paged_kv import PagedKV


@dataclass(frozen=True, slots=True)
class KVLayer:
    """One layer's part of the cache, and the backend that allocated it."""

    backend: AttentionBackend
    keys: Tensor
    """The first dimension is blocks, one more than the block pool has; the rest of the layout is the backend's."""
    values: Tensor
    key_scales: Tensor | None = None
    """float32 [blocks + 1, kv_heads, block_size], of a cache in 8 bits; in 4 bits as in kernels/int4_kv.py."""
    value_scales: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the layer; the first dimension of each is blocks."""
        found = (self.keys, self.values, self.key_scales, self.value_scales)
        return [tensor for tensor in found if tensor is not None]

    def of(self, group: DecodeGroup | PrefillGroup, *, keys_by_dimension: bool = False) -> PagedKV:
        """The cache as the sequences of ``group`` read it."""
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
    """One layout of the paged cache on one device, and attention over it. Chosen once, in ``select.py``."""

    def allocate(self, blocks: int, kv_heads: int, block_size: int, head_dim: int) -> KVLayer:
        """A layer's cache, zeroed."""
        ...

    def padded_length(self, length: int) -> int:
        """The length that decode pads a sequence of ``length`` tokens to: the runner makes sequences of equal padded
        length consecutive. 0 where attention stops at each sequence's own end."""
        ...

    def metadata(self, batch: CommonAttentionMetadata) -> AttentionMetadata:
        """Built once a step, for all layers."""
        ...

    def store(self, cache: KVLayer, keys: Tensor, values: Tensor, batch: AttentionMetadata) -> None:
        """Writes ``keys`` and ``values`` [tokens, kv_heads, head_dim] to the batch's slots."""
        ...

    def move(self, cache: KVLayer, sources: Tensor, targets: Tensor) -> None:
        """Keys and values from slots to slots, int64 [tokens]; all are read before any is written."""
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
        sinks: Tensor | None = None,
    ) -> Tensor:
        """``query`` [tokens, heads, head_dim] → the same shape; over latents see latent_backend.py.

        ``window``: a token sees itself and the ``window - 1`` before it. ``softcap``: scores go through
        ``softcap * tanh(score / softcap)`` before they are masked. ``sinks`` float32 [heads]: a score of each head that
        takes weight, and has no value.
        """
        ...
