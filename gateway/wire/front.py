"""What an endpoint needs to know of its callers' dialect: reading requests, writing answers and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.errors import GatewayError
from gateway.policy.schema.limits import Limits
from gateway.types import Call, ChatRequest, Chunk
from gateway.wire.answer import Dialect, Events, Whole


class EventWriter(Protocol):
    """One streamed answer."""

    def event(self, chunk: Chunk) -> bytes:
        """Empty when the chunk holds nothing for the caller."""
        ...

    def comment(self, text: str) -> bytes:
        """Something that keeps the connection alive and is no part of the answer."""
        ...

    def end(self) -> bytes: ...
    def error(self, error: GatewayError) -> bytes: ...


class BodyWriter(Protocol):
    """One whole answer."""

    def add(self, chunk: Chunk) -> None: ...
    def body(self) -> bytes: ...


class Front(Protocol):
    @property
    def read_request(self) -> Callable[[bytes, Limits], ChatRequest]:
        """A function of a module's top level, so that another process can be asked for it. Raises ``BadRequest``."""
        ...

    def events(self, call: Call) -> EventWriter: ...
    def whole(self, call: Call) -> BodyWriter: ...

    def own(self, request_id: str, created: int) -> bytes | None:
        """The words that alone tell one answer from the same answer, given again; ``created`` is Unix time.

        None where it is more than that.
        """
        ...


class OpenAIFront:
    """OpenAI's dialects, chat or plain completions."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.read_request = dialect.read_request

    def events(self, call: Call) -> EventWriter:
        return Events(self._dialect, call)

    def whole(self, call: Call) -> BodyWriter:
        return Whole(self._dialect, call)

    def own(self, request_id: str, created: int) -> bytes | None:
        return b'"id":"%b%b","created":%d,' % (self._dialect.ID_PREFIX.encode(), request_id.encode(), created)


ErrorWriter = Callable[[GatewayError, str], bytes]
"""An error's body, from the error and the request's id."""
