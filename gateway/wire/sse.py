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
        self._rest = b""

    def feed(self, part: bytes) -> list[bytes]:
        """The data of the events that ``part`` completes. Raises ``EventTooLarge``."""
        text = self._rest + part
        held = b""
        if b"\r" in text:
            if text.endswith(b"\r"):  # its \n may be the next byte to come
                text, held = text[:-1], b"\r"
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *blocks, rest = text.split(b"\n\n")
        self._rest = rest + held
        if len(self._rest) > MAX_EVENT:
            raise EventTooLarge(f"an event of over {MAX_EVENT} bytes")
        return [data for block in blocks if (data := _data(block)) is not None]


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
