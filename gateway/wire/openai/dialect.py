"""OpenAI's dialects: chat completions, completions, embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gateway.errors import Internal
from gateway.policy.schema.limits import RequestLimits
from gateway.types import Call, ChatRequest, Chunk, Json
from gateway.wire.dialect import BodyWriter, ChunkReader, EventWriter
from gateway.wire.obfuscation import ObfuscatedEvents, is_wanted
from gateway.wire.openai import chat, completions, embeddings
from gateway.wire.openai.chunks_to_body import OpenAIBodyWriter
from gateway.wire.openai.chunks_to_events import OpenAIEventWriter
from gateway.wire.openai.envelope import AnswerFormat
from gateway.wire.openai.vectors_to_body import VectorsWriter

Read = Callable[[Mapping[str, Json]], list[Chunk]]


@dataclass(frozen=True, eq=False)
class OpenAIDialect:
    """An API that generates text. Its answers are read event by event without a state."""

    path: str
    format: AnswerFormat
    read_request: Callable[[bytes, RequestLimits], ChatRequest]
    write_request: Callable[[ChatRequest, str], dict[str, Json]]
    read_answer: Read
    read_event: Read

    def event_writer(self, call: Call) -> EventWriter:
        events = OpenAIEventWriter(self.format, call)
        return ObfuscatedEvents(events) if is_wanted(call.request.params) else events

    def body_writer(self, call: Call) -> BodyWriter:
        return OpenAIBodyWriter(self.format, call)

    def answer_head(self, request_id: str, created: int) -> bytes | None:
        return b'"id":"%b%b","created":%d,' % (self.format.id_prefix.encode(), request_id.encode(), created)

    def chunk_reader(self, *, native: bool = False) -> ChunkReader:
        return self


class EmbeddingsDialect:
    """Embeddings are never streamed, and have no ids."""

    path = embeddings.PATH
    read_request = staticmethod(embeddings.read_request)
    write_request = staticmethod(embeddings.write_request)
    read_answer = staticmethod(embeddings.read_answer)

    def event_writer(self, call: Call) -> EventWriter:
        raise Internal("A request for embeddings got as far as a stream.")

    def body_writer(self, call: Call) -> BodyWriter:
        return VectorsWriter(call)

    def answer_head(self, request_id: str, created: int) -> bytes | None:
        return None

    def read_event(self, raw: Mapping[str, Json]) -> Iterator[Chunk]:
        """No server streams embeddings."""
        raise TypeError("not an embedding")

    def chunk_reader(self, *, native: bool = False) -> ChunkReader:
        return self


CHAT = OpenAIDialect(
    chat.PATH, chat.FORMAT, chat.read_request, chat.write_request, chat.read_answer, chat.read_event
)
COMPLETIONS = OpenAIDialect(
    completions.PATH,
    completions.FORMAT,
    completions.read_request,
    chat.write_request,
    completions.read_answer,
    completions.read_answer,
)
EMBEDDINGS = EmbeddingsDialect()
