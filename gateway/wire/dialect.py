"""What each API's dialect offers, to callers who speak it and towards providers that do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from gateway.errors import GatewayError
from gateway.policy.schema.limits import RequestLimits
from gateway.types import Call, ChatRequest, Chunk, Json


class EventWriter(Protocol):
    """Writes one streamed answer."""

    def event(self, chunk: Chunk) -> bytes:
        """Empty when the chunk holds nothing for the caller."""
        ...

    def pieces(self, like: Chunk, texts: Sequence[str]) -> bytes:
        """The events of ``like.with_text`` for each of ``texts``."""
        return b"".join([self.event(like.with_text(text)) for text in texts])

    def comment(self, text: str) -> bytes:
        """Something that keeps the connection alive and is no part of the answer."""
        ...

    def end(self) -> bytes: ...
    def error(self, error: GatewayError) -> bytes: ...


class BodyWriter(Protocol):
    """Writes one answer that is not streamed."""

    def add(self, chunk: Chunk) -> None: ...
    def body(self) -> bytes: ...


class ChunkReader(Protocol):
    """Reads one answer of a provider. Raises ``KeyError``, ``TypeError``, ``AttributeError`` on malformed values."""

    def read_answer(self, raw: Mapping[str, Json]) -> Iterable[Chunk]:
        """A whole answer, as a short stream."""
        ...

    def read_event(self, raw: Mapping[str, Json]) -> Iterable[Chunk]:
        """One event of a stream."""
        ...


class Dialect(Protocol):
    """One API, in both directions."""

    @property
    def path(self) -> str:
        """Below a provider's base URL."""
        ...

    @property
    def read_request(self) -> Callable[[bytes, RequestLimits], ChatRequest]:
        """A function of a module's top level, so that another process can be asked for it. Raises ``BadRequest``."""
        ...

    def event_writer(self, call: Call) -> EventWriter: ...
    def body_writer(self, call: Call) -> BodyWriter: ...

    def answer_head(self, request_id: str, created: int) -> bytes | None:
        """The bytes that alone differ between an answer and the same answer repeated; ``created`` is Unix time.

        None where more than one place differs.
        """
        ...

    def write_request(self, request: ChatRequest, model: str) -> dict[str, Json]:
        """The body to send to a provider. Raises ``BadRequest`` for what its API has no equivalent of."""
        ...

    def chunk_reader(self, *, native: bool = False) -> ChunkReader:
        """For one answer of a provider. ``native``: the caller speaks this dialect, too."""
        ...


ErrorWriter = Callable[[GatewayError, str], bytes]
"""An error's body, from the error and the request's id."""
