"""One frame for all endpoints whose answer is a model's: as one body, or as events.

A client that leaves ends the work for it. What fails before anything was sent is raised; after that it is told in the
stream.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress

from starlette.types import Scope, Send

from gateway.errors import TOO_LATE, GatewayError, Internal, ShuttingDown, UpstreamFailed
from gateway.runtime.runtime import Runtime
from gateway.server.cycle import TAKE_BY
from gateway.types import Call, Chunk
from gateway.web.body import cancel_on_disconnect
from gateway.web.calls import reply_headers
from gateway.web.event_stream import EVENTS
from gateway.web.sending import send_body
from gateway.web.stream_writer import StreamWriter
from gateway.wire.dialect import BodyWriter, EventWriter

LAST_WORDS = 0.5
"""Seconds in which a client takes the news that its answer is cut, or does not."""

Settle = Callable[[GatewayError | None], Awaitable[None]]
"""Awaited when an answer has come, or has failed after it began, before its end is sent."""


async def answer_whole(
    runtime: Runtime, call: Call, writer: BodyWriter, scope: Scope, send: Send, settle: Settle | None = None
) -> None:
    """Answer ``call`` with one body."""
    await read_whole(runtime, call, writer.add, scope)
    if settle is not None:
        await settle(None)
    await send_body(send, writer.body(), headers=reply_headers(call))


async def read_whole(runtime: Runtime, call: Call, take: Callable[[Chunk], object], scope: Scope) -> None:
    """Give ``take`` all of an answer that is not streamed. Raises ``UpstreamFailed`` where there is none."""
    cancel_on_disconnect(scope)
    empty = True
    if runtime.whole is not None and call.request.is_whole:
        for chunk in await runtime.whole(call):
            empty = False
            take(chunk)
    else:
        async with aclosing(runtime.handler(call)) as chunks:
            async for chunk in chunks:
                empty = False
                take(chunk)
    if empty:
        raise _nothing()


async def answer_stream(
    runtime: Runtime,
    call: Call,
    events: EventWriter,
    scope: Scope,
    send: Send,
    settle: Settle | None = None,
    *,
    heartbeat: float,
    kind: bytes = EVENTS,
) -> None:
    """Answer ``call`` with events, of the content type ``kind``. ``heartbeat`` is the longest silence, in seconds."""
    cancel_on_disconnect(scope)
    # Nothing runs before the first chunk is asked for: the call has its sink by then.
    async with aclosing(runtime.handler(call)) as chunks:
        stream = StreamWriter(
            events, send, lambda: reply_headers(call), every=heartbeat, scope=scope, kind=kind
        )
        await _write_stream(stream, events, call, chunks, scope, settle)


async def _write_stream(
    stream: StreamWriter,
    events: EventWriter,
    call: Call,
    chunks: AsyncIterator[Chunk],
    scope: Scope,
    settle: Settle | None,
) -> None:
    """Raises what goes wrong before anything was sent."""
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
