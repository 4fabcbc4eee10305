"""Attention over the paged cache for a batch in which some sequences have one new token and others have many."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.worker.kv_cache import KVLayer
from kernels.paged_decode import paged_decode
from kernels.paged_prefill import paged_prefill


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


def attend(
    query: Tensor,
    batch: AttentionInput,
    cache: KVLayer,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """``query`` [tokens, heads, head_dim] → the same shape.

    ``window``: a token sees itself and the ``window - 1`` before it. ``softcap``: scores go through
    ``softcap * tanh(score / softcap)`` before they are masked.
    """
    parts = [
        paged_decode(
            query[group.start : group.stop],
            cache.keys,
            cache.values,
            group.block_tables,
            group.seq_lens,
            scale,
            window,
            softcap,
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
            scale,
            window,
            softcap,
        )
        for group in batch.prefills
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
