"""Answers that are passed on as they come: sound, text, events; a document in JSON comes whole.

Only what they used is read from them, and an error in place of an answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.backends.answer_limits import MAX_BODY, MAX_STREAM, AnswerLimits
from gateway.backends.openai_errors import from_event
from gateway.errors import GatewayError, UpstreamFailed
from gateway.types import Call, Chunk, Json, Usage
from gateway.wire.apis.usage import read_usage

HARMLESS = re.compile(
    r"(?:audio/[\w.+-]+|image/(?:png|jpeg|webp|gif)|text/(?:plain|vtt|event-stream)|application/(?:json|x-subrip"
    r"|octet-stream|ogg))(?:; ?[\w-]+=[\w.-]+)*",
    re.IGNORECASE,
)
"""Types of content that a browser takes for nothing but what they are: no page of a provider's becomes one of ours."""
UNKNOWN = "application/octet-stream"
_BLANK_LINE = re.compile(rb"\r?\n\r?\n|\r\r")
_TELLING = (b'"usage"', b'"error"', b'"duration"')
"""One of them is in every event that is worth parsing: most of the others are long, and hold sound or pictures."""
_NONSENSE = (AttributeError, KeyError, TypeError, ValueError)


class ApiDecoder:
    """``headers`` are the answer's."""

    def __init__(self, backend: str, call: Call, headers: Mapping[str, str], *, events: bool) -> None:
        self.done = False
        self.has_content = False
        self.error: GatewayError | None = None
        self._backend = backend
        self._call = call
        self._events = events
        kind = headers.get("content-type", "").strip()
        self._kind = kind if HARMLESS.fullmatch(kind) else UNKNOWN
        self._whole = kind.lower().startswith("application/json")
        self._limits = AnswerLimits(backend, call.request, call.policy.limits)
        self._size = self._looked = 0
        self._parts: list[bytes] = []
        self._rest = bytearray()
        self._usage: Usage | None = None

    def feed(self, part: bytes) -> Sequence[Chunk]:
        if self._whole:
            self._limits.read(part)
            self._parts.append(part)
            return ()
        self._size += len(part)
        if self._size > MAX_STREAM:
            raise self._failed(f"sent an answer of over {MAX_STREAM} bytes")
        if self._events:
            part = self._whole_events(part)
        return (self._chunk({"bytes": part}),) if part else ()

    def finish(self) -> Sequence[Chunk]:
        if self._whole:
            return self._document()
        last = [self._chunk({"bytes": bytes(self._rest)})] if self._rest else []
        if not last and not self.has_content:
            raise UpstreamFailed(f"Backend '{self._backend}' sent an empty answer.", code="upstream_empty")
        return [*last, Chunk(finish_reason="stop", usage=self._usage)]

    def _document(self) -> Sequence[Chunk]:
        body = b"".join(self._parts)
        try:
            raw = self._limits.parsed(body)
            if raw.get("error"):
                raise from_event(self._backend, raw["error"])
            usage = read_usage(raw, self._call.request.api or "speech")
        except _NONSENSE as error:
            raise self._failed("answered with something that is no object in JSON") from error
        chunk = self._chunk({"json": body})
        chunk.finish_reason, chunk.usage = "stop", usage
        return (chunk,)

    def _chunk(self, delta: dict[str, Json]) -> Chunk:
        envelope = {} if self.has_content else {"content_type": self._kind}
        self.has_content = True
        return Chunk(delta=delta, envelope=envelope)

    def _whole_events(self, part: bytes) -> bytes:
        """The events that ``part`` completes, as they came: nothing of the gateway's own gets in between."""
        rest = self._rest
        rest += part
        if len(rest) > MAX_BODY:
            raise self._failed(f"sent an event of over {MAX_BODY} bytes")
        end = start = 0
        for blank in _BLANK_LINE.finditer(rest, max(0, self._looked - 3)):
            end = blank.end()
            self._read(bytes(rest[start:end]))
            if self.error is not None:
                end = start  # the gateway tells it in its own words
                break
            start = end
        ready = bytes(rest[:end])
        del rest[:end]
        self._looked = len(rest)
        return ready

    def _read(self, event: bytes) -> None:
        if not any(word in event for word in _TELLING):
            return
        lines = re.split(rb"\r\n|\r|\n", event)
        data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
        try:
            raw: Any = orjson.loads(data)
            if raw.get("error"):
                self.error = from_event(self._backend, raw["error"])
                return
            self._usage = read_usage(raw, self._call.request.api or "speech") or self._usage
        except _NONSENSE:
            self._call.receipt.note("backend", malformed_events=1)

    def _failed(self, what: str) -> UpstreamFailed:
        return UpstreamFailed(f"Backend '{self._backend}' {what}.", code="upstream_malformed")
