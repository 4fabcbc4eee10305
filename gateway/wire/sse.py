"""Server-sent events, read and written (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

from __future__ import annotations

DONE = b"data: [DONE]\n\n"
"""How OpenAI's API ends a stream."""

MAX_EVENT = 8 * 2**20

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventTooLarge(ValueError):
    """The stream holds an event over ``MAX_EVENT`` bytes."""


class EventReader:
    """Finds the ``data`` of each event in a stream of bytes, however the bytes are cut up.

    Comments and the other fields are passed over. An event that the stream's end leaves open is dropped, as the
    standard says.
    """

    def __init__(self) -> None:
        self.passed_over = 0
        """How many blocks had no data."""
        self.is_between = True
        """No event has begun that has not ended."""
        self._rest = bytearray()
        self._held = b""

    def feed(self, part: bytes) -> list[bytes]:
        """The data of the events that ``part`` completes. Raises ``EventTooLarge``."""
        if (events := self.plain_events(part)) is not None:
            return events
        self.is_between = False
        if self._held or b"\r" in part:
            part, self._held = self._held + part, b""
            if part.endswith(b"\r"):  # its \n may be the next byte to come
                part, self._held = part[:-1], b"\r"
            part = part.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if self._rest:
            # What has come before is not looked through again: it would be, for each piece of a long event.
            start = len(self._rest) - 1
            self._rest += part
            if self._rest.find(b"\n\n", start) < 0:
                self._bound()
                return []
            part = bytes(self._rest)
        *blocks, rest = part.split(b"\n\n")
        if rest or self._rest:
            self._rest = bytearray(rest)
            self._bound()
        self.is_between = not rest and not self._held
        events = [data for block in blocks if (data := _data(block)) is not None]
        self.passed_over += len(blocks) - len(events)
        return events

    def plain_events(self, part: bytes) -> list[bytes] | None:
        """The data of whole events of one line each, as tokens mostly come; None where ``part`` is anything else."""
        if not (self.is_between and part.startswith(b"data: ") and part.endswith(b"\n\n")):
            return None
        events = part[6:-2].split(b"\n\ndata: ")
        return events if part.count(b"\n") == 2 * len(events) and b"\r" not in part else None

    def _bound(self) -> None:
        if len(self._rest) > MAX_EVENT:
            raise EventTooLarge(f"an event of over {MAX_EVENT} bytes")


def _data(block: bytes) -> bytes | None:
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    lines = [
        line[5:].removeprefix(b" ")
        for line in block.removeprefix(_BYTE_ORDER_MARK).split(b"\n")
        if line.startswith(b"data:") or line == b"data"
    ]
    return b"\n".join(lines) if lines else None


def event(data: bytes) -> bytes:
    """One event, ready to send. ``data`` must be a single line, as compact JSON is."""
    return b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """A line that clients pass over, which keeps the connection alive. ``text`` must be a single line."""
    return b": " + text.encode() + b"\n\n"
