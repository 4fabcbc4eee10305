"""What turns the bytes of a server's answer into chunks, whatever its API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

from gateway.backends.answer_limits import AnswerLimits
from gateway.errors import GatewayError
from gateway.types import Call, Chunk


class AnswerDecoder(Protocol):
    @property
    def done(self) -> bool:
        """The answer's end has been read; whatever follows is of no interest."""
        ...

    has_content: bool
    """Something of the answer itself has come: a role alone is no first token."""
    error: GatewayError | None
    """What is wrong with the answer; it comes after the chunks before it."""

    def feed(self, part: bytes) -> Sequence[Chunk]:
        """The chunks that ``part`` completes, each but the last with ``more`` set. Raises ``GatewayError`` where
        there are none before it."""
        ...

    def finish(self) -> Sequence[Chunk]:
        """The upstream closed: the last chunks. Raises ``gateway.errors.GatewayError`` if the answer is cut."""
        ...


class ReadsPieces(AnswerDecoder, Protocol):
    """A decoder of streams that knows pieces of text without being fed."""

    def pieces(self, part: bytes) -> Sequence[Chunk]:
        """The chunks of a short ``part`` that is pieces of text and nothing else, as ``feed`` gives them; none of one
        that is to be fed.

        Counts nothing: a part whose pieces are passed on is told to ``passed``, and not fed.
        """
        ...

    def passed(self, part: bytes) -> None: ...


def reads_pieces(decoder: AnswerDecoder) -> TypeGuard[ReadsPieces]:
    return hasattr(decoder, "pieces")


class BodyDecoder:
    """The base of decoders of whole answers: it collects the body, within limits."""

    def __init__(self, backend: str, call: Call) -> None:
        self.done = False
        self.has_content = False
        self.error: GatewayError | None = None
        self._backend = backend
        self._limits = AnswerLimits(backend, call.request, call.policy.limits)
        self._parts: list[bytes] = []

    def feed(self, part: bytes) -> Sequence[Chunk]:
        self._limits.read(part)
        self._parts.append(part)
        return ()

    def _parsed(self) -> Any:
        """The body as JSON. Raises ``orjson.JSONDecodeError``, or ``UpstreamFailed`` beyond a limit."""
        return self._limits.parsed(b"".join(self._parts))
