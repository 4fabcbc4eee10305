"""Chunks as one response of the Responses API (https://platform.openai.com/docs/api-reference/responses/object)."""

from __future__ import annotations

import orjson

from gateway.types import Chunk
from gateway.wire.responses.chunks_to_events import ResponseEventWriter


class ResponseBodyWriter:
    """Collects a stream of chunks: what the events of it add up to."""

    def __init__(self, events: ResponseEventWriter) -> None:
        self._events = events

    def add(self, chunk: Chunk) -> None:
        self._events.event(chunk)

    def body(self) -> bytes:
        return orjson.dumps(self._events.response())
