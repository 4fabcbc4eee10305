"""Chunks to server-sent events of OpenAI's APIs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import orjson

from gateway.errors import GatewayError
from gateway.types import Call, Candidate, Chunk, Json, Usage
from gateway.wire import sse
from gateway.wire.dialect import EventWriter
from gateway.wire.openai.envelope import AnswerFormat, envelope_fields
from gateway.wire.openai.errors import error_body
from gateway.wire.openai.thinking_blocks import ThinkingBlocks
from gateway.wire.openai.usage import write_usage

_SHARED = frozenset({"id", "created", "model", "system_fingerprint"})
"""Fields of a stream that are the same in all its events."""
_MARK = "\x00"


class OpenAIEventWriter(EventWriter):
    """Writes chunks as server-sent events. With ``include_usage`` the last event has the usage, the others null."""

    def __init__(self, format: AnswerFormat, call: Call) -> None:
        self._format = format
        self._call = call
        self._usage: Usage | None = None
        self._tail = b'],"usage":null}\n\n' if call.request.include_usage else b"]}\n\n"
        self._start = b""
        self._shared: dict[str, Json] = {}
        self._candidate: Candidate | None = None
        self._thinking: dict[int, ThinkingBlocks] = {}
        self._plain: Mapping[str, Json] | None = None
        """The envelope of the last event that had no fields of its own."""
        self._around: dict[int, tuple[bytes, bytes]] = {}
        """By choice, the bytes around the text of an event that holds nothing else."""
        self._like: Chunk | None = None
        """The piece that the last ``pieces`` were like."""
        self._like_around: tuple[bytes, bytes] | None = None

    def event(self, chunk: Chunk) -> bytes:
        """Empty when the chunk holds nothing for the caller."""
        if chunk.usage is not None:
            self._usage = chunk.usage
        if not self._start or self._call.candidate is not self._candidate:
            self._open(chunk.envelope)
        if (delta := chunk.delta) is None:
            return b""
        text = delta.get("content")
        if len(delta) > 1 or "content" not in delta:
            if chunk.finish_reason is not None and delta.get("tool_calls"):
                # OpenAI's own streams end a choice in an event of its own, and its clients take calls that come with
                # the end for unfinished ones.
                shared = {name: value for name, value in chunk.envelope.items() if name in _SHARED}
                calls = Chunk(chunk.index, delta, logprobs=chunk.logprobs, envelope=shared)
                return self.event(calls) + self.event(replace(chunk, delta={}, logprobs=None))
            thinking = self._thinking.setdefault(chunk.index, ThinkingBlocks())
            if (written := thinking.feed(delta)) is not delta:
                chunk = replace(chunk, delta=written)
        elif (
            type(text) is str
            and (chunk.envelope is self._plain or not chunk.envelope)
            and chunk.finish_reason is None
            and chunk.stop is None
            and chunk.logprobs is None
            and chunk.revocation is None
            and chunk.choice is None
        ):
            before, after = self._around.get(chunk.index) or self._split(chunk.index)
            return before + orjson.dumps(text) + after
        event = self._start + orjson.dumps(self._format.event_choice(chunk)) + self._tail
        if chunk.revocation is None and (not chunk.envelope or chunk.envelope.keys() <= _SHARED):
            self._plain = chunk.envelope
            return event
        own = {name: value for name, value in chunk.envelope.items() if name not in _SHARED}
        if chunk.revocation is not None:
            own["tollgate"] = chunk.revocation
            event = self._usage_event() + event
        # Fields of this event alone, such as a provider's filter verdicts or timings, follow those that all share.
        return event[:-3] + b"," + orjson.dumps(own)[1:] + b"\n\n"

    def pieces(self, like: Chunk, texts: Sequence[str]) -> bytes:
        if like is not self._like:
            self._learn(like)
        if self._like_around is None:
            return super().pieces(like, texts)
        before, after = self._like_around
        return before + (after + before).join(map(orjson.dumps, texts)) + after

    def comment(self, text: str) -> bytes:
        return sse.comment(text)

    def end(self) -> bytes:
        """The usage, where it was asked for and is known, and the end mark."""
        return self._usage_event() + sse.DONE

    def _usage_event(self) -> bytes:
        """Once: at the end, or before the event that cuts the answer."""
        usage, self._usage = self._usage, None
        if not self._call.request.include_usage or usage is None:
            return b""
        return self._start + b'],"usage":' + orjson.dumps(write_usage(usage)) + b"}\n\n"

    def error(self, error: GatewayError) -> bytes:
        """Past the first byte an error can only be an event; without [DONE], so that nobody takes it for success."""
        return sse.event(error_body(error, self._call.request_id))

    def _learn(self, like: Chunk) -> None:
        """Whether the events of pieces like this one differ by their text alone."""
        self._like, self._like_around = like, None
        shares = like.envelope.keys() <= _SHARED and like.choice is None
        if (
            self._start
            and self._call.candidate is self._candidate
            and shares
            and "content" in (like.delta or ())
        ):
            self._like_around = self._around.get(like.index) or self._split(like.index)

    def _split(self, index: int) -> tuple[bytes, bytes]:
        choice = orjson.dumps(self._format.event_choice(Chunk(index, {"content": _MARK})))
        before, _, after = choice.partition(orjson.dumps(_MARK))
        self._around[index] = around = self._start + before, after + self._tail
        return around

    def _open(self, envelope: Mapping[str, Json]) -> None:
        # What all events of an answer share is written out once; only the model can change, if another takes over.
        if not self._shared:
            self._shared = {name: value for name, value in envelope.items() if name in _SHARED}
            self._shared.setdefault("created", int(time.time()))
        self._candidate = self._call.candidate
        self._around.clear()
        self._like = None
        head = envelope_fields(self._shared, self._format.chunk_object, self._format.id_prefix, self._call)
        self._start = b"data: " + orjson.dumps(head)[:-1] + b',"choices":['
