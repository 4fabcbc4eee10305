"""Chunks as answers of ``streamGenerateContent``, and as the one of ``generateContent``
(https://ai.google.dev/api/generate-content#method:-models.streamgeneratecontent)."""

from __future__ import annotations

import orjson

from gateway.errors import GatewayError
from gateway.types import Call, Chunk, Json
from gateway.wire.dialect import EventWriter
from gateway.wire.gemini.candidate_parts import CandidateParts
from gateway.wire.gemini.errors import error_value
from gateway.wire.gemini.response_fields import ResponseFields


class GeminiEventWriter(EventWriter):
    """Writes one answer as server-sent events (``?alt=sse``)."""

    kind = b"text/event-stream; charset=utf-8"
    """The content type."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._fields = ResponseFields(call)
        self._parts: dict[int, CandidateParts] = {}
        self._calling: set[int] = set()
        """The candidates that have called a function: what follows waits for the end."""
        self._suffix = b""

    def event(self, chunk: Chunk) -> bytes:
        """Empty when the chunk holds nothing for the caller yet."""
        if (
            chunk.envelope
            or chunk.usage is not None
            or chunk.finish_reason is not None
            or chunk.choice
            or chunk.logprobs is not None
            or chunk.revocation is not None
        ):
            self._fields.observe(chunk)
        delta, index = chunk.delta, chunk.index
        if delta is None:
            return b""
        text = delta.get("content")
        if len(delta) == 1 and text and isinstance(text, str) and index not in self._calling:  # nearly all
            return self._framed(_TEXT % (orjson.dumps(text), index, self._tail()))
        parts = self._parts.get(index)
        if parts is None:
            parts = self._parts[index] = CandidateParts()
        parts.add(delta)
        if delta.get("tool_calls"):
            self._calling.add(index)
        ready = parts.take()
        if not ready:
            return b""
        content = {"content": {"parts": ready, "role": "model"}, "index": index}
        return self._framed(orjson.dumps({"candidates": [content], **self._fields.head()}))

    def comment(self, text: str) -> bytes:
        """An empty line: Google's SDK for Python takes comments for answers."""
        return b"\n"

    def end(self) -> bytes:
        last = {"candidates": self._candidates(), **self._fields.end()}
        return self._framed(orjson.dumps(last)) + self._closing()

    def error(self, error: GatewayError) -> bytes:
        """The last event of an answer that failed."""
        return self._framed(orjson.dumps(error_value(error, self._call.request_id))) + self._closing()

    def blocked(self, error: GatewayError) -> bytes:
        """All of the answer to a prompt that was blocked."""
        return self._framed(orjson.dumps(self._fields.blocked(error))) + self._closing()

    def _candidates(self) -> list[Json]:
        indexes = sorted({*self._fields.candidates, *self._parts} or {0})
        return [self._ended(index) for index in indexes]

    def _ended(self, index: int) -> dict[str, Json]:
        known = self._parts.get(index)
        rest = known.rest() if known is not None else []
        fields = self._fields.candidate(index).end(has_calls=index in self._calling)
        return {"content": {"parts": rest or [{"text": ""}], "role": "model"}, **fields, "index": index}

    def _tail(self) -> bytes:
        if not self._suffix:
            self._suffix = orjson.dumps(self._fields.head())[1:]
        return self._suffix

    def _framed(self, event: bytes) -> bytes:
        return b"data: %b\n\n" % event

    def _closing(self) -> bytes:
        return b""


_TEXT = b'{"candidates":[{"content":{"parts":[{"text":%b}],"role":"model"},"index":%d}],%b'


class GeminiArrayWriter(GeminiEventWriter):
    """Writes one answer as a JSON array, element by element, as Google does without ``?alt=sse``."""

    kind = b"application/json; charset=utf-8"

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._begun = False

    def _framed(self, event: bytes) -> bytes:
        separator = b",\r\n" if self._begun else b"["
        self._begun = True
        return separator + event

    def _closing(self) -> bytes:
        return b"]"


class GeminiBodyWriter:
    """Collects a stream of chunks into one ``GenerateContentResponse``."""

    def __init__(self, call: Call) -> None:
        self._fields = ResponseFields(call)
        self._parts: dict[int, CandidateParts] = {}
        self._calling: set[int] = set()

    def add(self, chunk: Chunk) -> None:
        self._fields.observe(chunk)
        if chunk.delta is None:
            return
        parts = self._parts.get(chunk.index)
        if parts is None:
            parts = self._parts[chunk.index] = CandidateParts()
        parts.add(chunk.delta)
        if chunk.delta.get("tool_calls"):
            self._calling.add(chunk.index)

    def body(self) -> bytes:
        return orjson.dumps({"candidates": self._candidates(), **self._fields.end()})

    def blocked(self, error: GatewayError) -> bytes:
        return orjson.dumps(self._fields.blocked(error))

    def _candidates(self) -> list[Json]:
        return [self._candidate(index, self._parts[index]) for index in sorted(self._parts)]

    def _candidate(self, index: int, parts: CandidateParts) -> dict[str, Json]:
        fields = self._fields.candidate(index).end(has_calls=index in self._calling)
        content: dict[str, Json] = {"role": "model"}
        if rest := parts.rest():
            content = {"parts": rest, **content}
        return {"content": content, **fields, "index": index}
