"""The bytes that a stream's events share: mostly one event differs from the next by its text alone.

An event with the same bytes around another JSON string is the same JSON value with that string in it, so only the
string needs to be parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import orjson

from gateway.deltas import TEXT_FIELDS
from gateway.types import Chunk, Json

_ATTEMPTS = 8
"""Events without a match after which none is looked for: some servers pad each event differently."""
_PROBE = "\x00"
_NONE: tuple[Sequence[str], int] = ((), 0)


class EventTemplate:
    """One answer's. ``read`` makes chunks of an event's JSON."""

    __slots__ = (
        *("_attempts", "_line", "_read", "around", "known"),
        *("_between", "_end", "_line_end", "_line_start", "_prefix", "_start", "_suffix"),
    )

    def __init__(
        self, read: Callable[[Mapping[str, Json]], Iterable[Chunk]], *, line: bytes = b"data: "
    ) -> None:
        """``line`` is what events with pieces of text begin with."""
        self._read = read
        self._line = line
        self.around = len(line) + 2
        """Bytes of an event around its data."""
        self._attempts = _ATTEMPTS
        self.known: Chunk | None = None
        """The one that was learned: those of events that match are ``known.with_text``."""
        self._prefix = self._suffix = b""
        self._start, self._end = 0, 0
        self._line_start = self._line_end = self._between = b""
        """All around an event's text, its quotes included; and between the texts of two."""

    def chunk(self, data: bytes) -> Chunk | None:
        """The chunk in an event that matches; None where ``data`` must be parsed."""
        known = self.known
        if known is None or not data.startswith(self._prefix) or not data.endswith(self._suffix):
            return None
        try:
            text = orjson.loads(data[self._start : len(data) - self._end])
        except orjson.JSONDecodeError:
            return None
        if not text or type(text) is not str:
            return None
        self._attempts = _ATTEMPTS
        return known.with_text(text)

    def texts(self, part: bytes, most: int) -> tuple[Sequence[str], int]:
        """The texts of the events that a part of a stream begins with, in its first ``most`` bytes, and where the last
        of them ends. None where not all match, line by line.

        An event has been learned (``known``).
        """
        start, end = self._line_start, self._line_end
        stop = part.rfind(end, 0, most)
        if stop < 0 or not part.startswith(start):
            return _NONE
        inner = part[len(start) : stop]
        try:
            # It holds no line break, which no string may hold: so an event that does not match is none.
            texts = (
                [orjson.loads(b'"%b"' % inner)]
                if b"\n" not in inner
                else self._several(part[: stop + len(end)])
            )
        except (orjson.JSONDecodeError, TypeError):
            return _NONE
        if not texts or not all(texts):
            return _NONE
        self._attempts = _ATTEMPTS
        return texts, stop + len(end)

    def _several(self, events: bytes) -> list[str]:
        """The texts of several events. Empty where not all match; else raises ``JSONDecodeError`` or ``TypeError``.

        Cut at the short end of an event and compared as a whole, as looking for all that is between two texts takes
        longer than all else; and read as one list of strings. What stands between two of these has a line break, which
        no string may hold: so none goes over it, and none is two, as they would be more, or not all strings.
        """
        start, end = self._line_start, self._line_end
        first, last = len(start), 2 - len(end)
        inner = [event[first:last] for event in events.split(b"\n\n")[:-1]]
        if start + self._between.join(inner) + end != events:
            return []
        texts: list[str] = orjson.loads(b'["' + b'",\n"'.join(inner) + b'"]')
        "".join(texts)  # raises TypeError unless all are strings
        return texts if len(texts) == len(inner) else []

    def learn(self, data: bytes, chunk: Chunk) -> None:
        """Take the bytes around the text of ``chunk``, which was read from ``data``, if it holds nothing else."""
        delta = chunk.delta
        if not self._attempts or delta is None or len(delta) != 1:
            return
        ((name, text),) = delta.items()
        if name not in TEXT_FIELDS or type(text) is not str or not text or b"\n" in data:
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
        self.known, self._prefix, self._suffix = chunk, prefix, suffix
        self._start, self._end = len(prefix), len(suffix)
        self._line_start, self._line_end = self._line + prefix + b'"', b'"' + suffix + b"\n\n"
        self._between = self._line_end + self._line_start
