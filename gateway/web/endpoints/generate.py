"""The endpoints that generate: a request in, a stream of chunks out, as one body or as events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress

from starlette.types import Receive, Scope, Send

from gateway.errors import (
    TOO_LATE,
    BadRequest,
    GatewayError,
    Internal,
    ShuttingDown,
    UnknownModel,
    UpstreamFailed,
)
from gateway.policy.schema import parse_duration
from gateway.server.cycle import TAKE_BY
from gateway.server.headers import RequestHeaders
from gateway.types import Call, ChatRequest, Chunk, Receipt
from gateway.web.attached_files import attach
from gateway.web.body import cancel_on_disconnect, read_body
from gateway.web.body_parser import BodyReader
from gateway.web.context import RequestContext, route_of
from gateway.web.event_stream import EVENTS, EventStream
from gateway.web.heavy_reads import HeavyReads, Reading
from gateway.web.sending import Headers, send_body
from gateway.web.stream_writer import StreamWriter
from gateway.wire.dialect import BodyWriter, Dialect, EventWriter

LAST_WORDS = 0.5
"""Seconds in which a client takes the news that its answer is cut, or does not."""

_MODEL = "x-tollgate-model"
_LONGEST_PRODUCT = 64
_TRACE = frozenset({b"traceparent", b"tracestate"})
_PROVIDER = frozenset({b"anthropic-beta", b"anthropic-version"})
"""Headers of the caller's that its model's provider is to see; only backends that know them pass them on."""
_HEEDED = _TRACE | _PROVIDER | {b"cache-control", b"x-tollgate-deadline", b"user-agent", b"x-tollgate-queue"}


class Generate:
    """The ASGI endpoint of one dialect."""

    def __init__(self, dialect: Dialect, reader: BodyReader, reads: HeavyReads, *, heartbeat: float) -> None:
        """``heartbeat`` is the longest silence, in seconds, of a stream; 0 is without bound."""
        self._dialect = dialect
        self._reader = reader
        self._reads = reads
        self._heartbeat = heartbeat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        runtime, dialect, owner = context.runtime, self._dialect, context.caller().tenant
        repeats = runtime.rendered.is_used and context.line is None
        reading: Reading | None = None
        try:
            data = await read_body(context.headers, receive, self._reader.max_body)
            if context.deployment is not None:
                data = await self._reader.naming(context.deployment, data, context)
            if repeats and await self._rendered(context, scope, data, send):
                return
            request = await self._reader.parser.read(dialect.read_request, data, runtime.policy.limits, owner)
            if b'"file_id"' in data and request.native is None:
                reading = self._reads.of(owner)
                most = self._reader.max_body
                request = await attach(request, runtime.files, owner, reading, most_bytes=most)
            call = make_call(context, request, scope)
            cancel_on_disconnect(scope)
            if request.stream:
                async with aclosing(runtime.handler(call)) as chunks:
                    events = dialect.event_writer(call)
                    await write_stream(events, call, chunks, scope, send, heartbeat=self._heartbeat)
            elif runtime.whole is not None and request.is_whole:
                answer = await runtime.whole(call)
                await write_answer(dialect.body_writer(call), call, answer, send)
            else:
                async with aclosing(runtime.handler(call)) as chunks:
                    await write_whole(dialect.body_writer(call), call, chunks, send)
        finally:
            if reading is not None:
                reading.release()
        if repeats:
            runtime.rendered.keep(dialect, call, data)

    async def _rendered(self, context: RequestContext, scope: Scope, data: bytes, send: Send) -> bool:
        """Whether an answer stood ready. It waits for nothing, so nobody watches for its client to leave."""
        found = context.runtime.rendered.answer(
            self._dialect,
            context.caller(),
            context.request_id,
            context.headers,
            data,
            started=context.started,
            route=route_of(scope),
        )
        if found is None:
            return False
        streamed, body, headers = found
        if streamed:
            await EventStream(send, lambda: headers, heartbeat=b"", every=0).end(body)
        else:
            await send_body(send, body, headers=headers)
        return True


Settle = Callable[[GatewayError | None], Awaitable[None]]
"""Awaited when an answer has come, or has failed after it began, before its end is sent."""


async def write_whole(
    whole: BodyWriter,
    call: Call,
    chunks: AsyncIterator[Chunk],
    send: Send,
    settle: Settle | None = None,
) -> None:
    """Send an answer as one body."""
    empty = True
    async for chunk in chunks:
        empty = False
        whole.add(chunk)
    if empty:
        raise _nothing()
    if settle is not None:
        await settle(None)
    await send_body(send, whole.body(), headers=reply_headers(call))


async def write_answer(whole: BodyWriter, call: Call, chunks: Sequence[Chunk], send: Send) -> None:
    """``write_whole`` of an answer that is there."""
    if not chunks:
        raise _nothing()
    for chunk in chunks:
        whole.add(chunk)
    await send_body(send, whole.body(), headers=reply_headers(call))


async def write_stream(
    events: EventWriter,
    call: Call,
    chunks: AsyncIterator[Chunk],
    scope: Scope,
    send: Send,
    settle: Settle | None = None,
    *,
    heartbeat: float,
    kind: bytes = EVENTS,
) -> None:
    """Send an answer as events, of the content type ``kind``. Raises what goes wrong before anything was sent."""
    stream = StreamWriter(events, send, lambda: reply_headers(call), every=heartbeat, scope=scope, kind=kind)
    call.sink = stream
    with stream:
        try:
            first = await _first(chunks)
            scope[TAKE_BY] = asyncio.get_running_loop().time() + _time_left(call)
            end = await stream.write_all(first, chunks)
            if settle is not None:
                await settle(None)
            end += events.end()
        except GatewayError as error:
            if not stream.begun:
                raise
            if settle is not None:
                await settle(error)
            end = events.error(error)
        except asyncio.CancelledError:
            # The server gives up on what outlasts the drain timeout. A client that has left is cancelled too, and
            # what is sent to it goes nowhere; one that does not read must not hold up the end.
            if stream.begun:
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WORDS):
                        await stream.end(events.error(ShuttingDown(TOO_LATE, retry_after=1.0)))
            raise
        except Exception:
            if stream.begun:
                fault = Internal(
                    f"The gateway failed on this request. Its log has the reason under {call.request_id}."
                )
                await stream.end(events.error(fault))
            raise
        finally:
            call.sink = None  # it knows who looks on, and they know the call
        await stream.end(end)


def _time_left(call: Call) -> float:
    """Seconds that the rest of an answer may take, at either end."""
    total = call.timeouts.total
    return total if call.deadline is None else min(total, call.deadline - time.perf_counter())


async def _first(chunks: AsyncIterator[Chunk]) -> Chunk:
    first = await anext(chunks, None)
    if first is None:
        raise _nothing()
    return first


def _nothing() -> UpstreamFailed:
    return UpstreamFailed("The model's server sent an empty answer.")


def make_call(context: RequestContext, request: ChatRequest, scope: Scope) -> Call:
    """The call for the pipeline. Raises ``UnknownModel``, alike for what is not there and what is not allowed."""
    principal = context.caller()
    policy = context.runtime.policy
    model = policy.resolve(request.model)
    if model is None or not (principal.may_use(model) or principal.may_use(request.model)):
        raise UnknownModel.named(request.model)
    call = Call(
        request_id=context.request_id,
        principal=principal,
        request=request,
        policy=policy,
        receipt=Receipt(context.request_id, time.time()),
        started=context.started,
        headers={"traceparent": "", "x-request-id": context.request_id},
        model=model,
        route=scope["path"],
        query=scope.get("query_string", b"").decode("latin-1"),
        line=context.line,
        reply_headers=context.reply_headers,
    )
    if not _HEEDED.isdisjoint(context.headers):
        _heed(context.headers, call)
    return call


def _heed(sent: RequestHeaders, call: Call) -> None:
    """Do what the caller's headers say."""
    traced, provider = dict(call.headers), {}
    for name in sorted(_HEEDED & sent.keys()):
        text = sent[name].decode("latin-1")
        if name == b"user-agent":
            call.user_agent = _product(sent[name])
        elif name in _TRACE:
            traced[name.decode()] = text
        elif name in _PROVIDER:
            provider[name.decode()] = text
        elif name == b"cache-control":
            call.cache_control = text
        elif name == b"x-tollgate-deadline":
            call.deadline = call.started + _seconds(text)
        else:
            call.positions = text.strip().lower() == "positions"
    call.headers, call.provider_headers = traced, provider


def _product(user_agent: bytes) -> str:
    """What comes before a comment: ``Mozilla/5.0`` of every browser, ``OpenAI/Python 2.8.1`` of an SDK."""
    return user_agent[:_LONGEST_PRODUCT].partition(b"(")[0].strip().decode("ascii", "replace")


def _seconds(text: str) -> float:
    """A duration as policies have them; a number alone is one of seconds."""
    text = text.strip()
    try:
        seconds = parse_duration(f"{text}s" if text[-1:].isdigit() else text)
    except ValueError:
        seconds = 0.0
    if not seconds:
        raise BadRequest(
            "The header x-tollgate-deadline should be a time from now, such as 2.5s, 800ms or 1m.",
            param="x-tollgate-deadline",
            code="invalid_value",
        )
    return seconds


def reply_headers(call: Call) -> Headers:
    told = {_MODEL: "", **call.reply_headers}
    told[_MODEL] = call.candidate.model if call.candidate else call.model
    return [*zip(map(str.encode, told), map(str.encode, told.values()), strict=True)]
