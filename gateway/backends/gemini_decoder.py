"""Gemini's bytes to chunks: one decoder for streams, one for whole answers."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.backends import gemini_errors
from gateway.backends.answer_decoder import BodyDecoder
from gateway.backends.answer_limits import AnswerLimits
from gateway.backends.openai_errors import Outage
from gateway.errors import GatewayError, UpstreamFailed
from gateway.types import Call, Chunk
from gateway.wire import sse
from gateway.wire.gemini.answers_to_chunks import GeminiChunkReader

_NONSENSE = (KeyError, TypeError, AttributeError, ValueError)


class GeminiStreamDecoder:
    """A stream, which ends with its connection, once every candidate has said why it ended."""

    done = False

    def __init__(self, backend: str, call: Call, outage: Outage) -> None:
        self.has_content = False
        self.error: GatewayError | None = None
        self._backend = backend
        self._call = call
        self._outage = outage
        self._events = sse.EventReader()
        self._answer = GeminiChunkReader(backend)
        self._limits = AnswerLimits(backend, call.request, call.policy.limits)
        self._begun: set[int] = set()
        self._malformed = 0

    def feed(self, part: bytes) -> Sequence[Chunk]:
        chunks: list[Chunk] = []
        try:
            for data in self._events.feed(part):
                chunks += self._chunks(data)
            if self._events.passed_over:
                self._limits.pass_over(self._events.passed_over)
                self._events.passed_over = 0
        except sse.EventTooLarge as error:
            self.error = UpstreamFailed(f"Backend '{self._backend}' sent {error}.")
        except GatewayError as error:
            self.error = error
        for chunk in chunks[:-1]:
            chunk.more = True
        self.has_content = self.has_content or any(chunk.delta is not None for chunk in chunks)
        return chunks

    def finish(self) -> Sequence[Chunk]:
        if not self._begun or self._begun - self._answer.finished:
            raise UpstreamFailed(
                f"Backend '{self._backend}' ended its stream before the answer was complete.",
                code="upstream_cut",
            )
        return ()

    def _chunks(self, data: bytes) -> list[Chunk]:
        self._limits.read_event(data)
        parts = self._answer.parts
        try:
            raw = self._limits.parsed(data)
            if "error" in raw or isinstance(raw, list):
                raise gemini_errors.from_value(self._backend, None, raw, self._outage)
            chunks = [*self._answer.read_event(raw)]
        except _NONSENSE:
            # One bad event in an otherwise sound stream is not worth the answer.
            self._malformed += 1
            self._call.receipt.note("backend", malformed_events=self._malformed)
            self._limits.pass_over()
            return []
        self._limits.begin_blocks(self._answer.parts - parts)
        if not any(chunk.delta is not None for chunk in chunks):
            self._limits.pass_over()
        if self._malformed and any(chunk.finish_reason == "tool_calls" for chunk in chunks):
            # A text is little the worse for a lost event; of tool calls one may be missing.
            raise UpstreamFailed(
                f"Backend '{self._backend}' garbled a tool call in its stream.", code="upstream_malformed"
            )
        self._begun.update(chunk.index for chunk in chunks if chunk.delta is not None)
        if len(self._begun) > self._limits.choices:
            raise UpstreamFailed(
                f"Backend '{self._backend}' sent more answers than it was asked for.",
                code="upstream_malformed",
            )
        return chunks


class GeminiBodyDecoder(BodyDecoder):
    """A whole answer, as one JSON document."""

    def finish(self) -> Sequence[Chunk]:
        reader = GeminiChunkReader(self._backend)
        try:
            chunks = [*reader.read_answer(self._parsed())]
        except _NONSENSE as error:
            raise UpstreamFailed(
                f"Backend '{self._backend}' answered with something that is no answer of Gemini's; "
                "the operator should check its base_url.",
            ) from error
        self._limits.begin_blocks(reader.parts)
        for chunk in chunks[:-1]:
            chunk.more = True
        return chunks
