"""Anthropic's Messages dialect."""

from __future__ import annotations

from gateway.types import Call, ChatRequest, Json
from gateway.wire.anthropic import body_to_request, request_to_body
from gateway.wire.anthropic.chunks_to_events import AnthropicEventWriter
from gateway.wire.anthropic.chunks_to_message import AnthropicBodyWriter
from gateway.wire.anthropic.events_to_chunks import AnthropicChunkReader


class AnthropicDialect:
    """``max_tokens`` is the cap of requests whose caller set none, as this API demands one."""

    path = request_to_body.PATH
    read_request = staticmethod(body_to_request.read_request)

    def __init__(self, *, max_tokens: int = 4096) -> None:
        self._max_tokens = max_tokens

    def event_writer(self, call: Call) -> AnthropicEventWriter:
        _note_client(call)
        return AnthropicEventWriter(call)

    def body_writer(self, call: Call) -> AnthropicBodyWriter:
        _note_client(call)
        return AnthropicBodyWriter(call)

    def answer_head(self, request_id: str, created: int) -> bytes | None:
        # A stream begins with the estimate of its prompt's tokens, which changes with what is learned.
        return None

    def write_request(self, request: ChatRequest, model: str, *, prompted: bool = False) -> dict[str, Json]:
        """``prompted`` asks for a JSON form in the prompt, not by structured outputs."""
        return request_to_body.write_request(request, model, max_tokens=self._max_tokens, prompted=prompted)

    def chunk_reader(self, *, native: bool = False) -> AnthropicChunkReader:
        return AnthropicChunkReader(native=native)


def _note_client(call: Call) -> None:
    if call.request.native is not None and call.request.native.client:
        call.receipt.note("client", said=call.request.native.client)
