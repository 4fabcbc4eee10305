"""Anthropic's bytes to chunks: one decoder for streams, one for whole answers."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.backends import anthropic_errors
from gateway.backends.answer_decoder import BodyDecoder
from gateway.backends.answer_limits import AnswerLimits
from gateway.backends.openai_errors import Outage
from gateway.errors import GatewayError, UpstreamFailed
from gateway.types import Call, Chunk
from gateway.wire import sse
from gateway.wire.anthropic.body_to_request import DIALECT
from gateway.wire.anthropic.events_to_chunks import AnthropicChunkReader
from gateway.wire.event_template import EventTemplate

_NONSENSE = (KeyError, TypeError, AttributeError, ValueError)


class AnthropicStreamDecoder:
    """A stream, which ends at ``message_stop`` and nowhere else."""

    def __init__(self, backend: str, call: Call, outage: Outage) -> None:
        self.has_content = False
        self.error: GatewayError | None = None
        self._backend = backend
        self._call = call
        self._outage = outage
        self._events = sse.EventReader()
        self._message = AnthropicChunkReader(native=call.request.speaks(DIALECT))
        self._limits = AnswerLimits(backend, call.request, call.policy.limits)
        self._template = EventTemplate(self._message.read_event)
        self._malformed = 0

    @property
    def done(self) -> bool:
        return self._message.done

    def feed(self, part: bytes) -> Sequence[Chunk]:
        chunks: list[Chunk] = []
        try:
            for data in self._events.feed(part):
                if self._message.done:
                    break
                fresh = self._chunks(data)
                if not fresh:
                    self._limits.pass_over()
                chunks += fresh
            if self._events.passed_over:
                self._limits.pass_over(self._events.passed_over)
                self._events.passed_over = 0
        except sse.EventTooLarge as error:
            self.error = UpstreamFailed(f"Backend '{self._backend}' sent {error}.")
        except GatewayError as error:
            self.error = error
        for chunk in chunks[:-1]:
            chunk.more = True
        # The role comes with the first of the content, so any delta is some of it.
        self.has_content = self.has_content or any(chunk.delta is not None for chunk in chunks)
        return chunks

    def finish(self) -> Sequence[Chunk]:
        if not self._message.done:
            raise UpstreamFailed(
                f"Backend '{self._backend}' ended its stream before the answer was complete.",
                code="upstream_cut",
            )
        if not self._message.begun:
            raise UpstreamFailed(f"Backend '{self._backend}' sent an empty answer.", code="upstream_empty")
        return ()

    def _chunks(self, data: bytes) -> list[Chunk]:
        self._limits.read_event(data)
        if (known := self._template.chunk(data)) is not None:
            return [known]
        try:
            raw = self._limits.parsed(data)
            if raw["type"] == "error":
                raise anthropic_errors.from_event(self._backend, raw.get("error"), self._outage)
            if raw["type"] == "content_block_start":
                self._limits.begin_blocks()
            chunks = [*self._message.read_event(raw)]
        except _NONSENSE:
            # One bad event in an otherwise sound stream is not worth the answer.
            self._malformed += 1
            self._call.receipt.note("backend", malformed_events=self._malformed)
            return []
        if self._malformed and any(chunk.finish_reason == "tool_calls" for chunk in chunks):
            self._check_tool_calls()
        if len(chunks) == 1 and self.has_content:
            self._template.learn(data, chunks[0])
        return chunks

    def _check_tool_calls(self) -> None:
        """A text is little the worse for a lost event; a tool call without it is another call."""
        if not self._message.has_whole_tool_calls():
            raise UpstreamFailed(
                f"Backend '{self._backend}' garbled a tool call in its stream.", code="upstream_malformed"
            )


class AnthropicBodyDecoder(BodyDecoder):
    """A whole answer, as one JSON document."""

    def __init__(self, backend: str, call: Call, outage: Outage) -> None:
        super().__init__(backend, call)
        self._outage = outage
        self._native = call.request.speaks(DIALECT)

    def finish(self) -> Sequence[Chunk]:
        try:
            raw = self._parsed()
            if raw["type"] == "error":
                raise anthropic_errors.from_event(self._backend, raw.get("error"), self._outage)
            self._limits.begin_blocks(len(raw["content"]))
            chunks = [*AnthropicChunkReader(native=self._native).read_answer(raw)]
        except _NONSENSE as error:
            raise UpstreamFailed(
                f"Backend '{self._backend}' answered with something that is not a message; "
                "the operator should check its base_url."
            ) from error
        for chunk in chunks[:-1]:
            chunk.more = True
        return chunks
