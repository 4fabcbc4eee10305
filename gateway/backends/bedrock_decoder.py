"""Bedrock's bytes to chunks: one decoder for event streams, one for whole answers."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.backends import bedrock_errors
from gateway.backends.answer_decoder import BodyDecoder, StreamDecoder
from gateway.backends.openai_errors import Outage
from gateway.errors import UpstreamFailed
from gateway.types import Call, Chunk
from gateway.wire.bedrock.event_stream import Message, MessageReader
from gateway.wire.bedrock.events_to_chunks import GARBLED, BedrockChunkReader


class BedrockStreamDecoder(StreamDecoder[Message]):
    """A stream, which ends with its figures, or with its connection once it has said why it ended."""

    def __init__(self, backend: str, call: Call, outage: Outage) -> None:
        super().__init__(backend, call, MessageReader())
        self._outage = outage
        self._answer = BedrockChunkReader()

    @property
    def done(self) -> bool:
        return self._answer.done

    @property
    def _whole(self) -> bool:
        return bool(self._answer.stop_reason)

    def _chunks(self, event: Message) -> list[Chunk]:
        self._limits.read_event(event.payload)
        headers = event.headers
        if headers.get(":message-type", "event") != "event":
            kind = headers.get(":exception-type") or headers.get(":error-code") or ""
            raise bedrock_errors.from_exception(self._backend, kind, event.payload, self._outage)
        raw = self._limits.parsed(event.payload)
        kind = headers[":event-type"]
        if kind == "contentBlockStart":
            self._limits.begin_blocks()
        chunks = [*self._answer.read_event(kind, raw)]
        if kind == "messageStop":
            _check(self._backend, self._answer, suspicious=bool(self._malformed))
        return chunks


class BedrockBodyDecoder(BodyDecoder):
    """A whole answer, as one JSON document."""

    def finish(self) -> Sequence[Chunk]:
        reader = BedrockChunkReader()
        try:
            raw = self._parsed()
            self._limits.begin_blocks(len(raw["output"]["message"]["content"]))
            chunks = [*reader.read_answer(raw)]
        except StreamDecoder.NONSENSE as error:
            raise UpstreamFailed(
                f"Backend '{self._backend}' answered with something that is no answer of Converse; "
                "the operator should check its base_url.",
            ) from error
        _check(self._backend, reader)
        for chunk in chunks[:-1]:
            chunk.more = True
        return chunks


def _check(backend: str, answer: BedrockChunkReader, *, suspicious: bool = False) -> None:
    """A text is little the worse for a lost event; a tool call without it is another call."""
    if answer.stop_reason in GARBLED or (
        suspicious and answer.stop_reason == "tool_use" and not answer.has_whole_tool_calls()
    ):
        raise UpstreamFailed(
            f"Backend '{backend}' garbled its answer ({answer.stop_reason}). Try again.",
            code="upstream_malformed",
        )
