"""What of a chunk may pass an output guard: the texts that are scanned, and what can hold no text of the model's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from gateway.guards.actions.deltas import DeltaText, delta_texts, readable
from gateway.guards.streaming.logprobs import spell
from gateway.types import Chunk, Json

_NAMES = frozenset({"id", "system_fingerprint", "service_tier", "provider"})
_WORD = re.compile(
    r"(?:[A-Za-z_][A-Za-z_0-9]{0,63})?|[a-z]{2,16}_[A-Za-z0-9]{8,64}|\d{4}-\d\d-\d\dT[\d:.]{5,20}(?:Z|[+-]\d\d:\d\d)",
    re.ASCII,
)
"""A verdict, an id or a time."""


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
        if "native" in kept:
            chunk = replace(chunk, envelope={**kept, "native": _without_texts(kept["native"], left_out)})
    if chunk.choice:
        chunk = replace(chunk, choice=_without_texts(chunk.choice, left_out))
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
    """Numbers and names; ``native`` holds counts, ids and times in the caller's own dialect, and is looked at."""
    return name == "native" or (
        name in _NAMES if isinstance(value, str) else not isinstance(value, list | Mapping)
    )


def _without_texts(fields: Mapping[str, Json], left_out: set[str]) -> dict[str, Json]:
    """Verdicts, ids and numbers stay; citations and what an answer is grounded in repeat its text."""
    kept: dict[str, Json] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            kept[name] = _without_texts(value, left_out)
        elif _is_plain(value):
            kept[name] = value
        else:
            left_out.add(name)
    return kept


def _is_plain(value: Json) -> bool:
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    if isinstance(value, list):  # of numbers it may be tokens
        return all(isinstance(one, Mapping) and all(map(_is_plain, one.values())) for one in value)
    return not isinstance(value, Mapping) or all(map(_is_plain, value.values()))
