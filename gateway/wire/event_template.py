"""The bytes that a stream's events share: mostly one event differs from the next by its text alone.

An event with the same bytes around another JSON string is the same JSON value with that string in it, so only the
string needs to be parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import orjson

from gateway.deltas import TEXT_FIELDS
from gateway.types import Chunk, Json

_ATTEMPTS = 8
"""Events without a match after which none is looked for: some servers pad each event differently."""
_PROBE = "\x00"


class EventTemplate:
    """One answer's. ``read`` makes chunks of an event's JSON."""

    __slots__ = (
        *("_attempts", "_chunk", "_name", "_read"),
        *("_end", "_line_end", "_line_start", "_prefix", "_start", "_suffix"),
    )

    def __init__(self, read: Callable[[Mapping[str, Json]], Iterable[Chunk]]) -> None:
        self._read = read
        self._attempts = _ATTEMPTS
        self._chunk: Chunk | None = None
        self._name = ""
        self._prefix = self._suffix = b""
        self._start, self._end = 0, 0
        self._line_start = self._line_end = b""
        """Prefix and suffix with what stands around the data of an event of one line."""

    def chunk(self, data: bytes) -> Chunk | None:
        """The chunk in an event that matches; None where ``data`` must be parsed."""
        known = self._chunk
        if known is None or not data.startswith(self._prefix) or not data.endswith(self._suffix):
            return None
        return self._with(known, data[self._start : len(data) - self._end])

    def piece(self, part: bytes) -> Chunk | None:
        """The chunk in a part of a stream that is one event of one line, which matches, and nothing else; else None."""
        known = self._chunk
        if (
            known is None
            or not part.startswith(self._line_start)
            or not part.endswith(self._line_end)
            or part.count(b"\n") != 2
        ):
            return None
        return self._with(known, part[len(self._line_start) : -len(self._line_end)])

    def _with(self, known: Chunk, literal: bytes) -> Chunk | None:
        """The known chunk with another text."""
        try:
            text = orjson.loads(literal)
        except orjson.JSONDecodeError:
            return None
        if not text or type(text) is not str:
            return None
        self._attempts = _ATTEMPTS
        return Chunk(known.index, {self._name: text}, envelope=known.envelope, choice=known.choice)

    def learn(self, data: bytes, chunk: Chunk) -> None:
        """Take the bytes around the text of ``chunk``, which was read from ``data``, if it holds nothing else."""
        delta = chunk.delta
        if not self._attempts or delta is None or len(delta) != 1:
            return
        ((name, text),) = delta.items()
        if name not in TEXT_FIELDS or type(text) is not str or not text:
            return
        self._attempts -= 1
        literal = orjson.dumps(text)
        if data.count(literal) != 1:
            return
        prefix, suffix = data.split(literal)
        # Proof that the literal found is the text, and that the event holds nothing else.
        probe = orjson.loads(prefix + orjson.dumps(_PROBE) + suffix)
        expected = Chunk(chunk.index, {name: _PROBE}, envelope=chunk.envelope, choice=chunk.choice)
        if [*self._read(probe)] != [expected]:
            return
        self._name = name
        self._chunk, self._prefix, self._suffix = chunk, prefix, suffix
        self._start, self._end = len(prefix), len(suffix)
        self._line_start, self._line_end = b"data: " + prefix, suffix + b"\n\n"
