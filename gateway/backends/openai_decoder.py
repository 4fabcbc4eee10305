"""Bytes of a server with OpenAI's API to chunks: one decoder for streams, one for whole answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from gateway.backends.answer_decoder import BodyDecoder
from gateway.backends.answer_limits import AnswerLimits, has_content
from gateway.backends.openai_errors import from_event
from gateway.backends.stream_relay import StreamRelay
from gateway.backends.timeouts import UpstreamTimeouts
from gateway.errors import GatewayError, UpstreamFailed
from gateway.types import Call, Chunk, Json, Sink
from gateway.wire import sse
from gateway.wire.dialect import Dialect
from gateway.wire.event_template import EventTemplate
from gateway.wire.openai.events_to_chunks import own_fields

_NONSENSE = (orjson.JSONDecodeError, KeyError, TypeError, AttributeError)


class OpenAIStreamDecoder:
    """A stream ends at ``[DONE]``, or, from servers that do not send it, once every choice has a finish_reason."""

    def __init__(self, backend: str, dialect: Dialect, call: Call) -> None:
        self.done = False
        self.has_content = False
        self.error: GatewayError | None = None
        self._backend = backend
        self._read_event = dialect.chunk_reader().read_event
        self._call = call
        self._template = EventTemplate(self._read_event)
        self._reader = sse.EventReader()
        self._limits = AnswerLimits(backend, call.request, call.policy.limits)
        self._ended: set[int] = set()
        self._malformed = 0
        self._tools: dict[tuple[int, int], _ToolCall] = {}
        """Tool calls, by the indices of their choice and their own."""
        self._held: dict[str, Json] = {}
        """Fields of events without choices, such as Azure's verdicts on the prompt: the next chunk brings them."""

    def feed(self, part: bytes) -> Sequence[Chunk]:
        chunks: list[Chunk] = []
        try:
            for data in self._reader.feed(part):
                if data == b"[DONE]":
                    self.done = True
                    break
                self._read(data, chunks)
            if self._reader.passed_over:
                self._limits.pass_over(self._reader.passed_over)
                self._reader.passed_over = 0
        except sse.EventTooLarge as error:
            self.error = UpstreamFailed(f"Backend '{self._backend}' sent {error}.")
        except GatewayError as error:
            self.error = error
        if len(chunks) > 1:
            for chunk in chunks[:-1]:
                chunk.more = True
        return chunks

    def relay(self, sink: Sink, timeouts: UpstreamTimeouts) -> StreamRelay:
        return StreamRelay(sink, timeouts, self._reader, self._template, self._limits)

    def finish(self) -> Sequence[Chunk]:
        if len(self._ended) < self._limits.choices and not self.done:
            raise UpstreamFailed(
                f"Backend '{self._backend}' ended its stream before the answer was complete.",
                code="upstream_cut",
            )
        if not self.has_content and not self._ended:
            raise _empty(self._backend)
        return ()

    def _read(self, data: bytes, chunks: list[Chunk]) -> None:
        self._limits.read_event(data)
        if (known := self._template.chunk(data)) is not None:
            chunks.append(known)
            return
        fresh: list[Chunk] = []
        useful = False
        try:
            raw = self._limits.parsed(data)
            if raw.get("error"):
                raise from_event(self._backend, raw["error"])
            for chunk in self._read_event(raw):
                useful = self._limits.take(chunk, len(fresh)) or useful
                fresh.append(chunk)
            if not fresh:
                self._held.update(own_fields(raw))
            elif self._held:
                fresh[0].envelope = {**self._held, **fresh[0].envelope}
                self._held = {}
            for chunk in fresh:
                if chunk.delta and "tool_calls" in chunk.delta:
                    self._track_tools(chunk.index, chunk.delta["tool_calls"] or ())
        except _NONSENSE:
            # One bad event in an otherwise sound stream is not worth the answer.
            self._malformed += 1
            self._call.receipt.note("backend", malformed_events=self._malformed)
            self._limits.pass_over()
            return
        if not useful:
            self._limits.pass_over()
        for chunk in fresh:
            if chunk.delta is not None and not self.has_content:
                self.has_content = has_content(chunk.delta)
            if chunk.finish_reason is not None:
                if self._malformed and chunk.finish_reason != "length":
                    self._check_tools()
                self._ended.add(chunk.index)
        if len(fresh) == 1 and self.has_content:
            self._template.learn(data, fresh[0])
        chunks += fresh

    def _track_tools(self, choice: int, calls: Sequence[Mapping[str, Json]]) -> None:
        for i, call in enumerate(calls):
            tool = self._tools.setdefault((choice, call.get("index", i)), _ToolCall())
            function = call.get("function") or {}
            tool.named = tool.named or bool(function.get("name"))
            tool.arguments.append(function.get("arguments") or "")

    def _check_tools(self) -> None:
        """A text is little the worse for a lost event; a tool call without it is another call."""
        if not all(tool.is_whole() for tool in self._tools.values()):
            raise UpstreamFailed(
                f"Backend '{self._backend}' garbled a tool call in its stream.", code="upstream_malformed"
            )


@dataclass(slots=True)
class _ToolCall:
    named: bool = False
    arguments: list[str] = field(default_factory=list)

    def is_whole(self) -> bool:
        try:
            orjson.loads("".join(self.arguments) or "{}")
        except orjson.JSONDecodeError:
            return False
        return self.named


class OpenAIBodyDecoder(BodyDecoder):
    """A whole answer, as one JSON document."""

    def __init__(self, backend: str, dialect: Dialect, call: Call) -> None:
        super().__init__(backend, call)
        self._read_answer = dialect.chunk_reader().read_answer

    def finish(self) -> Sequence[Chunk]:
        try:
            raw = self._parsed()
            if raw.get("error"):
                raise from_event(self._backend, raw["error"])
            chunks = [*self._read_answer(raw)]
            self._limits.check_whole(chunks)
        except _NONSENSE as error:
            raise UpstreamFailed(
                f"Backend '{self._backend}' answered with something that is not a completion; "
                "the operator should check its base_url."
            ) from error
        if not chunks or (chunks[0].delta is None and all(chunk.delta is None for chunk in chunks)):
            raise _empty(self._backend)
        return chunks


def _empty(backend: str) -> UpstreamFailed:
    return UpstreamFailed(f"Backend '{backend}' sent an empty answer.", code="upstream_empty")
