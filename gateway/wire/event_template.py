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

    __slots__ = ("_attempts", "_chunk", "_end", "_name", "_prefix", "_read", "_shortest", "_start", "_suffix")

    def __init__(self, read: Callable[[Mapping[str, Json]], Iterable[Chunk]]) -> None:
        self._read = read
        self._attempts = _ATTEMPTS
        self._chunk: Chunk | None = None
        self._name = ""
        self._prefix = self._suffix = b""
        self._start, self._end, self._shortest = 0, 0, 0

    def chunk(self, data: bytes) -> Chunk | None:
        """The chunk in an event that matches; None where ``data`` must be parsed."""
        known = self._chunk
        if (
            known is None
            or len(data) < self._shortest
            or not data.startswith(self._prefix)
            or not data.endswith(self._suffix)
        ):
            return None
        try:
            text = orjson.loads(data[self._start : len(data) - self._end])
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
        self._shortest = len(prefix) + len(suffix) + 2
