"""What turns the bytes of a server's answer into chunks, whatever its API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeGuard, TypeVar

from gateway.backends.answer_limits import AnswerLimits
from gateway.backends.stream_relay import StreamRelay
from gateway.backends.timeouts import UpstreamTimeouts
from gateway.errors import GatewayError, UpstreamFailed
from gateway.types import Call, Chunk, Sink


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


class Relaying(AnswerDecoder, Protocol):
    """A decoder of streams that knows pieces of text without being fed."""

    def relay(self, sink: Sink, timeouts: UpstreamTimeouts) -> StreamRelay:
        """What it leaves of a part is to be fed, until ``done``."""
        ...


def is_relaying(decoder: AnswerDecoder) -> TypeGuard[Relaying]:
    return hasattr(decoder, "relay")


Event = TypeVar("Event")
Read = TypeVar("Read", covariant=True)


class EventReader(Protocol[Read]):
    """Cuts a stream's bytes into its events."""

    passed_over: int
    """What was no event since this was last set to 0: comments, empty lines."""

    def feed(self, part: bytes) -> Sequence[Read]:
        """Raises ``ValueError`` for bytes that are no such stream."""
        ...


class StreamDecoder(Generic[Event]):
    """The base of decoders of streams whose events are translated one by one.

    One bad event in an otherwise sound stream is not worth the answer: it is passed over, and noted in the receipt.
    """

    NONSENSE = (KeyError, TypeError, AttributeError, ValueError)
    """What reading an event raises that is none of its API's."""

    def __init__(self, backend: str, call: Call, events: EventReader[Event]) -> None:
        self.has_content = False
        self.error: GatewayError | None = None
        self._backend = backend
        self._call = call
        self._events = events
        self._limits = AnswerLimits(backend, call.request, call.policy.limits)
        self._malformed = 0

    @property
    def done(self) -> bool:
        """See ``AnswerDecoder``; some streams end with their connection only."""
        return False

    @property
    def _whole(self) -> bool:
        """Whether the answer has come to its end."""
        raise NotImplementedError

    def _chunks(self, event: Event) -> list[Chunk]:
        """What one event says. Raises ``GatewayError``, or one of ``NONSENSE``."""
        raise NotImplementedError

    def feed(self, part: bytes) -> Sequence[Chunk]:
        chunks: list[Chunk] = []
        try:
            for event in self._events.feed(part):
                if self.done:
                    break
                try:
                    fresh = self._chunks(event)
                except self.NONSENSE:
                    self._malformed += 1
                    self._call.receipt.note("backend", malformed_events=self._malformed)
                    fresh = []
                # The role comes with the first of the content, so any delta is some of it.
                if any(chunk.delta is not None for chunk in fresh):
                    self.has_content = True
                else:
                    self._limits.pass_over()
                chunks += fresh
            if self._events.passed_over:
                self._limits.pass_over(self._events.passed_over)
                self._events.passed_over = 0
        except ValueError as error:
            self.error = UpstreamFailed(f"Backend '{self._backend}' sent {error}.", code="upstream_malformed")
        except GatewayError as error:
            self.error = error
        for chunk in chunks[:-1]:
            chunk.more = True
        return chunks

    def finish(self) -> Sequence[Chunk]:
        if not self._whole:
            raise UpstreamFailed(
                f"Backend '{self._backend}' ended its stream before the answer was complete.",
                code="upstream_cut",
            )
        return ()


class BodyDecoder:
    """The base of decoders of whole answers: it collects the body, within limits."""

    done = False
    has_content = False
    error: GatewayError | None = None

    def __init__(self, backend: str, call: Call) -> None:
        self._backend = backend
        self._limits = AnswerLimits(backend, call.request, call.policy.limits)
        self._parts: list[bytes] = []

    def feed(self, part: bytes) -> Sequence[Chunk]:
        self._limits.read(part)
        self._parts.append(part)
        return ()

    def _parsed(self) -> Any:
        """The body as JSON. Raises ``orjson.JSONDecodeError``, or ``UpstreamFailed`` beyond a limit."""
        parts = self._parts
        return self._limits.parsed(parts[0] if len(parts) == 1 else b"".join(parts))
