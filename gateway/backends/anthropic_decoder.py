"""Anthropic's bytes to chunks: one decoder for streams, one for whole answers."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.backends import anthropic_errors
from gateway.backends.answer_decoder import BodyDecoder, StreamDecoder
from gateway.backends.openai_errors import Outage
from gateway.backends.stream_relay import StreamRelay
from gateway.backends.timeouts import UpstreamTimeouts
from gateway.errors import UpstreamFailed
from gateway.types import Call, Chunk, Sink
from gateway.wire import sse
from gateway.wire.anthropic.body_to_request import DIALECT
from gateway.wire.anthropic.events_to_chunks import AnthropicChunkReader
from gateway.wire.event_template import EventTemplate


class AnthropicStreamDecoder(StreamDecoder[bytes]):
    """A stream, which ends at ``message_stop`` and nowhere else."""

    def __init__(self, backend: str, call: Call, outage: Outage) -> None:
        self._reader = sse.EventReader()
        super().__init__(backend, call, self._reader)
        self._outage = outage
        self._message = AnthropicChunkReader(native=call.request.speaks(DIALECT))
        self._template = EventTemplate(self._message.read_event, line=b"event: content_block_delta\ndata: ")

    def relay(self, sink: Sink, timeouts: UpstreamTimeouts) -> StreamRelay:
        return StreamRelay(sink, timeouts, self._reader, self._template, self._limits)

    @property
    def done(self) -> bool:
        return self._message.done

    _whole = done

    def finish(self) -> Sequence[Chunk]:
        super().finish()
        if not self._message.begun:
            raise UpstreamFailed(f"Backend '{self._backend}' sent an empty answer.", code="upstream_empty")
        return ()

    def _chunks(self, event: bytes) -> list[Chunk]:
        self._limits.read_event(event)
        if (known := self._template.chunk(event)) is not None:
            return [known]
        raw = self._limits.parsed(event)
        if raw["type"] == "error":
            raise anthropic_errors.from_event(self._backend, raw.get("error"), self._outage)
        if raw["type"] == "content_block_start":
            self._limits.begin_blocks()
        chunks = [*self._message.read_event(raw)]
        if self._malformed and any(chunk.finish_reason == "tool_calls" for chunk in chunks):
            self._check_tool_calls()
        if len(chunks) == 1 and self.has_content:
            self._template.learn(event, chunks[0])
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
        except StreamDecoder.NONSENSE as error:
            raise UpstreamFailed(
                f"Backend '{self._backend}' answered with something that is not a message; "
                "the operator should check its base_url."
            ) from error
        for chunk in chunks[:-1]:
            chunk.more = True
        return chunks
