"""The chunks of one answer, joined as they come, so that pieces take little more memory than the whole text."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.deltas import text_piece
from gateway.types import Chunk, Json, Usage

_PIECE, _CHUNK = 64, 1024
"""Bytes that a piece of a text, and a chunk that joins no other, take beside their characters."""


class JoinedChunk:
    """Successive deltas of one choice, joined as long as they add to the same text."""

    __slots__ = ("choice", "delta", "envelope", "finish_reason", "index", "kind", "logprobs", "more", "stop")

    def __init__(
        self, index: int, delta: Mapping[str, Json] | None, kind: str | int | None, envelope: dict[str, Json]
    ) -> None:
        self.index = index
        self.delta = delta
        self.kind = kind
        """The text that it adds to: a field's name, or a tool call's index; None where it is more than a text."""
        self.more: list[str] = []
        """The text, from its second piece on."""
        self.finish_reason: str | None = None
        self.stop: str | int | None = None
        self.logprobs: list[Mapping[str, Json]] = []
        self.envelope = envelope
        self.choice: Mapping[str, Json] | None = None

    def whole_delta(self) -> Mapping[str, Json] | None:
        if not self.more or self.delta is None:
            return self.delta
        if isinstance(self.kind, int):
            first = self.delta["tool_calls"][0]["function"]["arguments"]
            function = {"arguments": "".join([first, *self.more])}
            return {"tool_calls": [{"index": self.kind, "function": function}]}
        name = str(self.kind)
        return {**self.delta, name: "".join([self.delta[name], *self.more])}

    def whole_logprobs(self) -> Json:
        return _concatenated(self.logprobs)

    def chunk(self) -> Chunk:
        return Chunk(
            self.index,
            self.whole_delta(),
            self.finish_reason,
            self.stop,
            self.whole_logprobs(),
            envelope=self.envelope,
            more=True,
            choice=self.choice,
        )


class JoinedChunks:
    """An answer so far. It refers to the deltas, and never changes or copies them."""

    __slots__ = ("_drop", "_kept", "_last", "_pieces", "_seen", "items", "size", "usage")

    def __init__(self, *, drop: frozenset[str] = frozenset()) -> None:
        """``drop`` names fields of envelopes that are not kept."""
        self.items: list[JoinedChunk] = []
        self.usage: Usage | None = None
        self.size = 0
        """Characters, approximately, including markup."""
        self._drop = drop
        self._last: dict[int, JoinedChunk] = {}
        self._seen: Mapping[str, Json] = {}
        self._kept: dict[str, Json] = {}
        self._pieces = 0

    @property
    def memory(self) -> int:
        """Bytes that it takes, approximately."""
        return self.size + _PIECE * self._pieces + _CHUNK * len(self.items)

    def add(self, chunk: Chunk) -> None:
        """``chunk`` is no comment."""
        if chunk.usage is not None:
            self.usage = chunk.usage
        envelope = chunk.envelope
        if envelope is not self._seen and envelope != self._seen:
            self._seen = envelope
            self._kept = {name: value for name, value in envelope.items() if name not in self._drop}
            self.size += _length(self._kept)
        index, delta = chunk.index, chunk.delta
        if delta is None:
            self._join_envelope()
            return
        kind, text = text_piece(delta) or (None, "")
        item = self._last.get(index)
        if (
            item is not None
            and item.finish_reason is None
            and (kind == item.kind and _same_role(delta, item.delta) if kind is not None else not delta)
        ):
            if text:
                item.more.append(text)
                self._pieces += 1
                self.size += len(text)
            if self._kept and item.envelope is not self._kept:
                item.envelope = merged(item.envelope, self._kept)
        else:
            item = self._last[index] = JoinedChunk(index, delta, kind, self._kept)
            self.items.append(item)
            self.size += _length(delta)
        if chunk.logprobs:
            item.logprobs.append(chunk.logprobs)
            self.size += _length(chunk.logprobs)
        if chunk.choice:
            item.choice = {**(item.choice or {}), **chunk.choice}
        if chunk.finish_reason is not None:
            item.finish_reason = chunk.finish_reason
            item.stop = chunk.stop

    def _join_envelope(self) -> None:
        """A chunk without a delta: its envelope's fields join the last item's, or become the first item."""
        if not self._kept:
            return
        if not self.items:
            self.items.append(JoinedChunk(0, None, None, self._kept))
        elif (last := self.items[-1]).envelope is not self._kept:
            last.envelope = merged(last.envelope, self._kept)


def merged(envelope: Mapping[str, Json], later: Mapping[str, Json]) -> dict[str, Json]:
    """``envelope`` with ``later``'s fields; a provider's native ones come in parts."""
    both = {**envelope, **later}
    if "native" in envelope and "native" in later:
        both["native"] = {**envelope["native"], **later["native"]}
    return both


def _same_role(delta: Mapping[str, Json], before: Mapping[str, Json] | None) -> bool:
    """Whether ``delta`` has no role, or the same."""
    return len(delta) == 1 or (before is not None and delta["role"] == before.get("role"))


def _concatenated(logprobs: list[Mapping[str, Json]]) -> Json:
    """Lists under the same name follow one another."""
    if len(logprobs) < 2:
        return logprobs[0] if logprobs else None
    whole: dict[str, Json] = {}
    for one in logprobs:
        for name, value in one.items():
            if isinstance(value, list):
                joined = whole.get(name)
                if not isinstance(joined, list):
                    joined = whole[name] = []  # a copy, as the chunk's own list must not change
                joined.extend(value)
            elif value is not None or name not in whole:
                whole[name] = value
    return whole


def _length(value: Json) -> int:
    """Characters of a value's texts, at least."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(name) + 4 + _length(one) for name, one in value.items())
    if isinstance(value, list | tuple):
        return sum(2 + _length(one) for one in value)
    return 4
