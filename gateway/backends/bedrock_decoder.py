"""Bedrock's bytes to chunks: one decoder for event streams, one for whole answers."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.backends import bedrock_errors
from gateway.backends.answer_decoder import BodyDecoder
from gateway.backends.answer_limits import AnswerLimits
from gateway.backends.openai_errors import Outage
from gateway.errors import GatewayError, UpstreamFailed
from gateway.types import Call, Chunk
from gateway.wire.bedrock.event_stream import BrokenStream, Message, MessageReader
from gateway.wire.bedrock.events_to_chunks import GARBLED, BedrockChunkReader

_NONSENSE = (KeyError, TypeError, AttributeError, ValueError)


class BedrockStreamDecoder:
    """A stream, which ends with its figures, or with its connection once it has said why it ended."""

    def __init__(self, backend: str, call: Call, outage: Outage) -> None:
        self.has_content = False
        self.error: GatewayError | None = None
        self._backend = backend
        self._call = call
        self._outage = outage
        self._messages = MessageReader()
        self._answer = BedrockChunkReader()
        self._limits = AnswerLimits(backend, call.request, call.policy.limits)
        self._malformed = 0

    @property
    def done(self) -> bool:
        return self._answer.done

    def feed(self, part: bytes) -> Sequence[Chunk]:
        chunks: list[Chunk] = []
        try:
            for message in self._messages.feed(part):
                if self._answer.done:
                    break
                fresh = self._chunks(message)
                if not fresh:
                    self._limits.pass_over()
                chunks += fresh
        except BrokenStream as error:
            self.error = UpstreamFailed(f"Backend '{self._backend}' sent {error}.", code="upstream_malformed")
        except GatewayError as error:
            self.error = error
        for chunk in chunks[:-1]:
            chunk.more = True
        self.has_content = self.has_content or any(chunk.delta is not None for chunk in chunks)
        return chunks

    def finish(self) -> Sequence[Chunk]:
        if not self._answer.stop_reason:
            raise UpstreamFailed(
                f"Backend '{self._backend}' ended its stream before the answer was complete.",
                code="upstream_cut",
            )
        return ()

    def _chunks(self, message: Message) -> list[Chunk]:
        self._limits.read_event(message.payload)
        headers = message.headers
        if headers.get(":message-type", "event") != "event":
            kind = headers.get(":exception-type") or headers.get(":error-code") or ""
            raise bedrock_errors.from_exception(self._backend, kind, message.payload, self._outage)
        try:
            raw = self._limits.parsed(message.payload)
            kind = headers[":event-type"]
            if kind == "contentBlockStart":
                self._limits.begin_blocks()
            chunks = [*self._answer.read_event(kind, raw)]
        except _NONSENSE:
            # One bad event in an otherwise sound stream is not worth the answer.
            self._malformed += 1
            self._call.receipt.note("backend", malformed_events=self._malformed)
            return []
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
        except _NONSENSE as error:
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
