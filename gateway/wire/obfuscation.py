"""Padding of a stream's events: who sees only their encrypted lengths could guess at the words by them.

OpenAI's ``stream_options.include_obfuscation`` (https://platform.openai.com/docs/api-reference/chat/create). It is on
there unless a caller forbids it; here a caller asks for it, as it is no use on a trusted network.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence

from gateway.errors import GatewayError
from gateway.types import Chunk, Json
from gateway.wire.dialect import EventWriter

STEP = 64
"""Events are padded to a multiple of it, in bytes."""
_FIELD = b',"obfuscation":"'
_PIECE = re.compile(rb"(?:event: [\w.]+\.delta\n)?data: \{")
"""How an event begins that holds a piece of an answer: any of chat's, the ``…delta`` ones of responses."""


def is_wanted(body: Mapping[str, Json]) -> bool:
    """Whether a request's body, or its parameters, ask for it."""
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_obfuscation") is True


def obfuscated(events: bytes) -> bytes:
    """``events``, each that holds a piece of an answer with random letters up to the next step of its length."""
    return b"".join(_padded(event) + b"\n\n" for event in events.split(b"\n\n")[:-1])


def _padded(event: bytes) -> bytes:
    if not event.endswith(b"}") or not _PIECE.match(event):
        return event
    letters = -(len(event) + len(_FIELD) + 1) % STEP
    return event[:-1] + _FIELD + secrets.token_hex(letters)[:letters].encode() + b'"}'


class ObfuscatedEvents(EventWriter):
    """An event writer's events, padded."""

    def __init__(self, events: EventWriter) -> None:
        self._events = events

    def event(self, chunk: Chunk) -> bytes:
        return obfuscated(self._events.event(chunk))

    def pieces(self, like: Chunk, texts: Sequence[str]) -> bytes:
        return obfuscated(self._events.pieces(like, texts))

    def comment(self, text: str) -> bytes:
        return self._events.comment(text)

    def end(self) -> bytes:
        return obfuscated(self._events.end())

    def error(self, error: GatewayError) -> bytes:
        return self._events.error(error)
