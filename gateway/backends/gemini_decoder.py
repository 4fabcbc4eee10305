"""Gemini's bytes to chunks: one decoder for streams, one for whole answers."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.backends import gemini_errors
from gateway.backends.answer_decoder import BodyDecoder, StreamDecoder
from gateway.backends.openai_errors import Outage
from gateway.errors import UpstreamFailed
from gateway.types import Call, Chunk
from gateway.wire import sse
from gateway.wire.gemini.answers_to_chunks import GeminiChunkReader
from gateway.wire.gemini.body_to_request import DIALECT


class GeminiStreamDecoder(StreamDecoder[bytes]):
    """A stream, which ends with its connection, once every candidate has said why it ended."""

    def __init__(self, backend: str, call: Call, outage: Outage) -> None:
        super().__init__(backend, call, sse.EventReader())
        self._outage = outage
        self._answer = GeminiChunkReader(backend, native=call.request.speaks(DIALECT))
        self._begun: set[int] = set()

    @property
    def _whole(self) -> bool:
        return bool(self._begun) and not self._begun - self._answer.finished

    def _chunks(self, event: bytes) -> list[Chunk]:
        self._limits.read_event(event)
        parts = self._answer.parts
        raw = self._limits.parsed(event)
        if "error" in raw or isinstance(raw, list):
            raise gemini_errors.from_value(self._backend, None, raw, self._outage)
        chunks = [*self._answer.read_event(raw)]
        self._limits.begin_blocks(self._answer.parts - parts)
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

    def __init__(self, backend: str, call: Call) -> None:
        super().__init__(backend, call)
        self._native = call.request.speaks(DIALECT)

    def finish(self) -> Sequence[Chunk]:
        reader = GeminiChunkReader(self._backend, native=self._native)
        try:
            chunks = [*reader.read_answer(self._parsed())]
        except StreamDecoder.NONSENSE as error:
            raise UpstreamFailed(
                f"Backend '{self._backend}' answered with something that is no answer of Gemini's; "
                "the operator should check its base_url.",
            ) from error
        self._limits.begin_blocks(reader.parts)
        for chunk in chunks[:-1]:
            chunk.more = True
        return chunks
