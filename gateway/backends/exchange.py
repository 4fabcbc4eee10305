"""One request to a model's server and its answer, within time limits, with every failure as the gateway's own error."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from urllib.parse import urlsplit

import httpx

from gateway.backends import openai_errors
from gateway.backends.answer_decoder import is_relaying
from gateway.backends.client import Client, UpstreamResponse
from gateway.backends.credentials.credentials import AuthorizedClient, Credentials
from gateway.backends.endpoint import Endpoint, Upload
from gateway.backends.error_scrubber import ErrorScrubber
from gateway.backends.openai_errors import Outage
from gateway.backends.stream_collector import CollectedAnswer
from gateway.backends.stream_relay import StreamRelay
from gateway.backends.timeouts import UpstreamTimeouts
from gateway.backends.upstream_request import UpstreamRequest
from gateway.errors import DeadlineExceeded, GatewayError, Rejected, Upstream, UpstreamFailed, UpstreamTimeout
from gateway.fair_turns import FairTurns, TimeSlice
from gateway.policy.schema import Timeouts
from gateway.types import Chunk, Chunks, Sink

MAX_ERROR = MAX_SHORT = 64 * 2**10
"""Bytes of an error's body that are read, and of an answer that is a few figures; no honest one is longer."""

PIECE = 2**14
"""Bytes of a stream that are taken apart before others may have their turn: they can hold a thousand events."""
OPENING = 2**10
"""The same at the beginning of one whose pieces go to a client as they come, once it has begun there."""
LONG = 2**18
"""Bytes of a whole answer past which it takes turns with others: its numbers are parsed as they come."""

PROBE = Timeouts.model_validate({"connect": "2s", "first_token": "6s", "total": "6s"})

ErrorReader = Callable[[str, int, Mapping[str, str], bytes, Outage], GatewayError]
"""From the backend's name, the status, headers and body of an answer other than 200."""


def late(backend: str, timeouts: UpstreamTimeouts) -> GatewayError:
    """The error for a wait that ``timeouts`` has ended."""
    if timeouts.past_deadline:
        return DeadlineExceeded(
            f"Backend '{backend}' had not finished the answer when this request's deadline passed. Try again "
            "with a longer one, or with a smaller max_tokens."
        )
    return UpstreamTimeout(f"Backend '{backend}' {timeouts.reason()}.")


class Exchange:
    """Sends a backend's requests. ``read_error`` reads the error bodies of its server.

    Whatever goes wrong in here leaves it scrubbed, before the answer or in the middle of it.
    """

    def __init__(
        self,
        backend: str,
        transport: httpx.AsyncBaseTransport | None = None,
        read_error: ErrorReader = openai_errors.from_response,
        *,
        api_key: str | None = None,
        base_url: str = "",
        outage: Outage | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """``api_key`` and the host of ``base_url`` reach no caller, should the server name them in an error.
        ``credentials`` are for servers that want others with each request."""
        self.backend = backend
        self.outage = outage or Outage()
        self._credentials = credentials
        self._client = (
            Client(transport=transport)
            if credentials is None
            else AuthorizedClient(credentials, transport=transport)
        )
        self._turns = FairTurns()
        self._read_error = read_error
        self._scrubber = ErrorScrubber(backend, api_key, urlsplit(base_url).hostname)

    def ask(self, asked: UpstreamRequest, *, at_once: bool, sink: Sink | None = None) -> Chunks:
        """The answer's chunks. One that comes ``at_once`` is read as ``whole_answer`` does.

        To ``sink``, once it is open, go pieces of a stream that nobody changes (``StreamRelay``).
        """
        return self._in_turns(asked) if at_once else self._stream(asked, sink)

    async def _in_turns(self, asked: UpstreamRequest) -> Chunks:
        chunks = await self.whole_answer(asked)
        time_slice = TimeSlice(self._turns, asked.owner)
        for chunk in chunks:
            yield chunk
            if time_slice.is_over():
                await time_slice.next()

    async def _stream(
        self, asked: UpstreamRequest, sink: Sink | None, answer: UpstreamResponse | None = None
    ) -> Chunks:
        """``answer`` is one that has begun to come."""
        timeouts = asked.timeouts
        begun = False
        try:
            if answer is None:
                answer = await self._send(asked.endpoint, asked.headers, timeouts, asked.body, asked.on_send)
                if asked.on_headers is not None:
                    asked.on_headers(answer.headers)
            try:
                time_slice = TimeSlice(self._turns, asked.owner)
                decoder = asked.decoder_of(answer.is_stream)
                parts = aiter(answer)
                if not is_relaying(decoder):
                    sink = None
                relay: StreamRelay | None = None
                most = PIECE if sink is None else OPENING
                while (part := await self._next_part(parts, timeouts)) is not None:
                    time_slice.begin()
                    while part and not decoder.done:
                        if relay is not None:
                            size = len(part)
                            relay.is_refused = False
                            part = relay.take(part)
                            if relay.is_refused:
                                # Piece by piece it would take ten times as long.
                                await relay.sink.caught_up()
                                part = relay.take(part)
                            if len(part) < size:
                                timeouts.progress()
                                if time_slice.is_over():
                                    await time_slice.next()
                                continue
                        if len(part) <= most:
                            piece, part = part, b""
                        else:
                            piece, part = _cut(part, most)
                        chunks = decoder.feed(piece)
                        if chunks and not begun:
                            begun = True
                            self._identify(answer, chunks)
                        if decoder.has_content and chunks:
                            timeouts.progress()
                        else:
                            timeouts.alive()
                        for chunk in chunks:
                            yield chunk
                            if chunk.more and time_slice.is_over():
                                await time_slice.next()
                        if decoder.error is not None:
                            raise decoder.error
                        if decoder.done:
                            timeouts.ended()
                            answer.divert(None)
                        elif relay is None and sink is not None and sink.is_open and is_relaying(decoder):
                            relay, most = decoder.relay(sink, timeouts), PIECE
                            answer.divert(relay.take)
                        if time_slice.is_over():
                            await time_slice.next()
                for chunk in decoder.finish():
                    yield chunk
            finally:
                timeouts.close()
                # Closing an answer that is not at its end makes the server stop working on it.
                await answer.aclose()
            return
        except GatewayError as error:
            again = self._failed(asked, error, begun=begun)
            if again is None:
                raise
        async with aclosing(again) as others:
            async for chunk in others:
                yield chunk

    async def whole_answer(self, asked: UpstreamRequest) -> Sequence[Chunk]:
        """The chunks of an answer that is awaited in one go, once all of it has come. It may be a stream after all."""
        timeouts, owner = asked.timeouts, asked.owner
        try:
            decoder = asked.decoder_of(False)
            answer, is_whole = await self._whole(
                asked.endpoint, asked.headers, timeouts, asked.body, decoder.feed, owner, asked.on_send
            )
            if asked.on_headers is not None:
                asked.on_headers(answer.headers)
            if is_whole:
                chunks = decoder.finish()
                self._identify(answer, chunks)
                return chunks
            held = CollectedAnswer(self.backend)
            try:
                async with aclosing(self._stream(asked._replace(refit=None), None, answer)) as streamed:
                    async for chunk in streamed:
                        held.add((chunk,))
            except GatewayError as error:
                error.unread = held.chunks()
                raise
            return held.chunks()
        except GatewayError as error:
            again = self._failed(asked, error, begun=False)
            if again is None:
                raise
        async with aclosing(again) as others:
            return [chunk async for chunk in others]

    def _failed(self, asked: UpstreamRequest, error: GatewayError, *, begun: bool) -> Chunks | None:
        """The answer in place of ``error``, which names nothing that its caller is not to see after this."""
        self._scrubber.error(error, asked.body if isinstance(asked.body, bytes) else b"")
        refit = asked.refit
        return None if begun or refit is None or not isinstance(error, Rejected) else refit(error)

    def _identify(self, answer: UpstreamResponse, chunks: Sequence[Chunk]) -> None:
        """Raises ``UpstreamFailed`` if this is the answer to another request."""
        given = chunks[0].envelope.get("id") if chunks else None
        if not given or not isinstance(given, str):
            return
        try:
            answer.identify(given)
        except httpx.TransportError as error:
            raise UpstreamFailed(
                f"Backend '{self.backend}' sent the answer to another request; it was thrown away."
            ) from error

    async def prove(self, endpoint: Endpoint, headers: Mapping[str, str]) -> None:
        """Ask for what costs the server nothing: it serves if it answers with 200. Raises ``GatewayError``."""
        timeouts = UpstreamTimeouts(PROBE)
        with self._scrubber.about(b""):
            answer = await self._send(endpoint, headers, timeouts)
            try:
                parts = aiter(answer)
                while await self._next_part(parts, timeouts) is not None:
                    pass
            finally:
                timeouts.close()
                await answer.aclose()

    async def authorize(self, endpoint: Endpoint) -> None:
        """Prove that there are credentials for ``endpoint``, without asking it. Raises ``GatewayError``."""
        timeouts = UpstreamTimeouts(PROBE)
        with self._scrubber.about(b""):
            try:
                with timeouts:
                    if self._credentials is not None:
                        await self._credentials.headers(endpoint, {}, b"")
            except TimeoutError:
                raise late(self.backend, timeouts) from None
            finally:
                timeouts.close()

    async def whole(
        self, endpoint: Endpoint, headers: Mapping[str, str], timeouts: UpstreamTimeouts, body: bytes
    ) -> bytes | None:
        """The body of a short answer, awaited in one go; None for a stream, which nobody asked for."""
        received = b""

        def take(part: bytes) -> None:
            nonlocal received
            received += part
            if len(received) > MAX_SHORT:
                raise UpstreamFailed(f"Backend '{self.backend}' sent an answer of over {MAX_SHORT} bytes.")

        with self._scrubber.about(body):
            answer, is_whole = await self._whole(endpoint, headers, timeouts, body, take, "")
            if not is_whole:
                await answer.aclose()
            return received if is_whole else None

    async def _send(
        self,
        endpoint: Endpoint,
        headers: Mapping[str, str],
        timeouts: UpstreamTimeouts,
        body: bytes | Upload = b"",
        on_send: Callable[[], None] | None = None,
    ) -> UpstreamResponse:
        """The answer, not yet read, for the caller to close; any status but 200 is raised."""
        try:
            with timeouts:
                answer = await self._client.send(
                    endpoint, headers, body, connect=timeouts.limits.connect, on_send=on_send
                )
        except httpx.TransportError as error:
            raise openai_errors.from_transport(self.backend, error, self.outage) from error
        except TimeoutError:
            raise late(self.backend, timeouts) from None
        if answer.status == 200:
            self.outage.over()
            return answer
        raise await self._refusal(answer, timeouts)

    async def _whole(
        self,
        endpoint: Endpoint,
        headers: Mapping[str, str],
        timeouts: UpstreamTimeouts,
        body: bytes | Upload,
        take: Callable[[bytes], object],
        owner: str,
        on_send: Callable[[], None] | None = None,
    ) -> tuple[UpstreamResponse, bool]:
        """An answer whose body was given to ``take``, awaited in one go; or a stream, and False: the caller's to read
        and close."""
        try:
            with timeouts:
                answer = await self._client.send(
                    endpoint, headers, body, connect=timeouts.limits.connect, on_send=on_send
                )
                if answer.status == 200:
                    self.outage.over()
                    if answer.is_stream:
                        return answer, False
                    # Short ones mostly come with their head.
                    if (received := answer.all_at_once(LONG)) is not None:
                        take(received)
                    else:
                        await self._read(answer, take, owner)
                    return answer, True
        except httpx.TransportError as error:
            raise openai_errors.from_transport(self.backend, error, self.outage) from error
        except TimeoutError:
            raise late(self.backend, timeouts) from None
        raise await self._refusal(answer, timeouts)

    async def _read(self, answer: UpstreamResponse, take: Callable[[bytes], object], owner: str) -> None:
        """All of an answer's body."""
        size = 0
        try:
            async for part in answer:
                size += len(part)
                if size > LONG:
                    await self._turns.take(owner)
                take(part)
        except httpx.TransportError as error:
            raise self._broken_off() from error
        finally:
            await answer.aclose()

    async def _refusal(self, answer: UpstreamResponse, timeouts: UpstreamTimeouts) -> GatewayError:
        """The error in an answer other than 200."""
        body_read = b""
        timeouts.refused()
        try:
            parts = aiter(answer)
            while (
                len(body_read) <= MAX_ERROR and (part := await self._next_part(parts, timeouts)) is not None
            ):
                body_read += part
        except (Upstream, DeadlineExceeded):
            pass  # The status alone says what matters.
        finally:
            await answer.aclose()
        error = self._read_error(self.backend, answer.status, answer.headers, body_read, self.outage)
        error.upstream_status = answer.status
        return error

    async def _next_part(self, parts: AsyncIterator[bytes], timeouts: UpstreamTimeouts) -> bytes | None:
        """The answer's next bytes; None at its end. Raises ``UpstreamFailed`` and ``UpstreamTimeout``."""
        try:
            with timeouts:
                return await anext(parts)
        except StopAsyncIteration:
            return None
        except httpx.TransportError as error:
            if timeouts.is_over:
                return None
            raise self._broken_off() from error
        except TimeoutError:
            if timeouts.is_over:
                return None
            raise late(self.backend, timeouts) from None

    async def aclose(self) -> None:
        await self._client.aclose()

    def _broken_off(self) -> UpstreamFailed:
        failed = UpstreamFailed(
            f"Backend '{self.backend}' broke off in the middle of its answer.", code="upstream_cut"
        )
        failed.severed = True
        return failed


def _cut(part: bytes, most: int) -> tuple[bytes, bytes]:
    """``part`` in two: behind an event, where one ends once the first has ``most`` bytes, or a little later."""
    end = part.find(b"\n\n", most, most + PIECE)
    end = most if end < 0 else end + 2
    return part[:end], part[end:]
