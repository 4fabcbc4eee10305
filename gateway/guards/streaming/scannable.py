"""What of a chunk may pass an output guard: the texts that are scanned, and what can hold no text of the model's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gateway.guards.actions.deltas import DeltaText, delta_texts, readable
from gateway.guards.streaming.logprobs import spell
from gateway.types import Chunk, Json

_NAMES = frozenset({"id", "system_fingerprint", "service_tier", "provider"})


def scannable(chunk: Chunk) -> tuple[Chunk, list[DeltaText], set[str]]:
    """``chunk`` without what is not scanned, its texts, and the names of what was left out.

    The sources of a search, or the answer once more beside its choices, may hold any text.
    """
    left_out: set[str] = set()
    if chunk.envelope:
        kept = {name: value for name, value in chunk.envelope.items() if _holds_no_text(name, value)}
        if len(kept) < len(chunk.envelope):
            left_out |= chunk.envelope.keys() - kept.keys()
            chunk = replace(chunk, envelope=kept)
    if chunk.delta is None:
        return chunk, [], left_out
    delta, unread = readable(chunk.delta)
    if delta is not chunk.delta:
        chunk = replace(chunk, delta=delta)
        left_out |= unread
    texts = delta_texts(delta)
    if chunk.logprobs is not None and not spell(chunk.logprobs, {one.channel: one.text for one in texts}):
        chunk = replace(chunk, logprobs=None)
    return chunk, texts, left_out


def _holds_no_text(name: str, value: Json) -> bool:
    """Numbers and names; ``native`` holds counts, ids and times in the caller's own dialect."""
    return name == "native" or (
        name in _NAMES if isinstance(value, str) else not isinstance(value, list | Mapping)
    )
