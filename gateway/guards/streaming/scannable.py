"""What of a chunk may pass an output guard: the texts that are scanned, and what can hold no text of the model's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from gateway.guards.texts.deltas import DeltaText, delta_texts, readable
from gateway.types import Chunk, Json

_NAMES = frozenset({"id", "model", "system_fingerprint", "service_tier", "provider"})
_WORD = re.compile(
    r"(?:[A-Za-z_][A-Za-z_0-9]{0,63})?|[a-z]{2,16}_[A-Za-z0-9]{8,64}|\d{4}-\d\d-\d\dT[\d:.]{5,20}(?:Z|[+-]\d\d:\d\d)",
    re.ASCII,
)
"""A verdict, an id or a time."""


class Scannable:
    """Of one answer: each chunk without what is not scanned, and its texts.

    The sources of a search, or the answer once more beside its choices, may hold any text. What chunks share beside
    their texts is looked through once.
    """

    __slots__ = ("_choice", "_envelope", "_kept_choice", "_kept_envelope", "left_out")

    def __init__(self) -> None:
        self.left_out: set[str] = set()
        """The names of what was left out."""
        self._envelope: Mapping[str, Json] | None = None
        self._kept_envelope: Mapping[str, Json] = {}
        self._choice: Mapping[str, Json] | None = None
        self._kept_choice: Mapping[str, Json] = {}

    def read(self, chunk: Chunk) -> tuple[Chunk, list[DeltaText]]:
        """What of ``chunk`` may pass; where that is all of it, ``chunk`` itself."""
        if (envelope := chunk.envelope) and envelope is not self._envelope:
            self._envelope, self._kept_envelope = envelope, self._of_envelope(envelope)
        if (choice := chunk.choice) and choice is not self._choice:
            self._choice, self._kept_choice = choice, _without_texts(choice, self.left_out)
        if (envelope and self._kept_envelope is not envelope) or (choice and self._kept_choice is not choice):
            chunk = replace(
                chunk,
                envelope=self._kept_envelope if envelope else envelope,
                choice=self._kept_choice if choice else choice,
            )
        if chunk.delta is None:
            return chunk, []
        delta, unread = readable(chunk.delta)
        if delta is not chunk.delta:
            chunk = replace(chunk, delta=delta)
            self.left_out |= unread
        texts = delta_texts(delta)
        if chunk.logprobs is not None and not _spell(
            chunk.logprobs, {one.channel: one.text for one in texts}
        ):
            chunk = replace(chunk, logprobs=None)
        return chunk, texts

    def _of_envelope(self, envelope: Mapping[str, Json]) -> Mapping[str, Json]:
        kept = {name: value for name, value in envelope.items() if _holds_no_text(name, value)}
        self.left_out |= envelope.keys() - kept.keys()
        if "native" in kept:
            kept["native"] = _without_texts(kept["native"], self.left_out)
        return envelope if kept == envelope else kept


def _holds_no_text(name: str, value: Json) -> bool:
    """Numbers and names; ``native`` holds counts, ids and times in the caller's own dialect, and is looked at."""
    return name == "native" or (
        name in _NAMES if isinstance(value, str) else not isinstance(value, list | Mapping)
    )


def _without_texts(fields: Mapping[str, Json], left_out: set[str]) -> Mapping[str, Json]:
    """Verdicts, ids and numbers stay; citations and what an answer is grounded in repeat its text. ``fields`` itself
    where all stays."""
    kept: dict[str, Json] = {}
    for name, value in fields.items():
        if isinstance(value, Mapping):
            kept[name] = _without_texts(value, left_out)
        elif _is_plain(value):
            kept[name] = value
        else:
            left_out.add(name)
    return fields if kept == fields else kept


def _is_plain(value: Json) -> bool:
    if isinstance(value, str):
        return _WORD.fullmatch(value) is not None
    if isinstance(value, list):  # of numbers it may be tokens
        return all(isinstance(one, Mapping) and all(map(_is_plain, one.values())) for one in value)
    return not isinstance(value, Mapping) or all(map(_is_plain, value.values()))


def _spell(logprobs: Json, texts: Mapping[str, str]) -> bool:
    """Whether the tokens in ``logprobs``, which may only leave with their text, are those of ``texts``, a delta's own,
    and of nothing else.

    A server may send them before their text, as for a character whose bytes are several tokens.
    """
    if not isinstance(logprobs, Mapping):
        return False
    if "tokens" in logprobs:  # as the older Completions have it
        tokens = logprobs["tokens"]
        return isinstance(tokens, list) and "".join(map(str, tokens)) == texts.get("content", "")
    return all(
        _spelled(entries, texts.get(name, "")) for name, entries in logprobs.items() if entries is not None
    )


def _spelled(entries: Json, text: str) -> bool:
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        return False
    if "".join(str(entry.get("token")) for entry in entries) == text:
        return True
    try:
        return b"".join(bytes(entry["bytes"]) for entry in entries) == text.encode()
    except (KeyError, TypeError, ValueError):
        return False
