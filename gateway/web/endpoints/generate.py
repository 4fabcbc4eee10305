"""The endpoints that generate: a request in, a stream of chunks out, as one body or as events."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
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
from gateway.types import Call, ChatRequest, Chunk, Receipt
from gateway.web.body import ClientLeft, WhileConnected, read_body
from gateway.web.context import Context
from gateway.web.responses import Headers, send_body
from gateway.wire.front import EventWriter, Front

LAST_WORDS = 0.5
"""Seconds in which a client takes the news that its answer is cut, or does not."""
MAX_WRITE = 2**16
"""Bytes of events that are put into one write at most."""

_STREAM: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Generate:
    """The ASGI endpoint of one dialect."""

    def __init__(self, front: Front, *, max_body: int) -> None:
        self._front = front
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = Context.of(scope)
        try:
            data = await read_body(scope, receive, self._max_body)
            if await self._repeat(context, scope, data, send):
                return
            request = self._front.read_request(data)
            call = make_call(context, request, scope)
            try:
                async with (
                    WhileConnected(scope, receive),
                    aclosing(context.runtime.handler(call)) as chunks,
                ):
                    first = await anext(chunks, None)
                    if first is None:
                        raise UpstreamFailed("The model's server sent an empty answer.")
                    if request.stream:
                        await self._stream(call, first, chunks, send)
                    else:
                        await self._whole(call, first, chunks, send)
            except GatewayError as error:
                error.headers = {**call.reply_headers, **error.headers}
                raise
        except ClientLeft:
            return
        context.runtime.repeats.keep(self._front, call, data)

    async def _repeat(self, context: Context, scope: Scope, data: bytes, send: Send) -> bool:
        """Whether an answer stood ready. It waits for nothing, so nobody watches for its client to leave."""
        found = context.runtime.repeats.answer(
            self._front,
            context.caller(),
            context.request_id,
            scope["headers"],
            data,
            started=context.started,
        )
        if found is None:
            return False
        streamed, body, headers = found
        if streamed:
            await send({"type": "http.response.start", "status": 200, "headers": [*_STREAM, *headers]})
            await _end(send, body)
        else:
            await send_body(send, body, headers=headers)
        return True

    async def _whole(self, call: Call, first: Chunk, rest: AsyncIterator[Chunk], send: Send) -> None:
        whole = self._front.whole(call)
        whole.add(first)
        async for chunk in rest:
            whole.add(chunk)
        await send_body(send, whole.body(), headers=_headers(call))

    async def _stream(self, call: Call, first: Chunk, rest: AsyncIterator[Chunk], send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [*_STREAM, *_headers(call)],
            }
        )
        events = self._front.events(call)
        try:
            end = await _write_all(events, first, rest, send)
        except GatewayError as error:
            end = events.error(error)
        except asyncio.CancelledError:
            # The server gives up on what outlasts the drain timeout. A client that has left is cancelled too, and
            # what is sent to it goes nowhere; one that does not read must not hold up the end.
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS):
                    await _end(send, events.error(ShuttingDown(TOO_LATE, retry_after=1.0)))
            raise
        except Exception:
            fault = Internal(
                f"The gateway failed on this request. Its log has the reason under {call.request_id}."
            )
            await _end(send, events.error(fault))
            raise
        await _end(send, end)


async def _write_all(events: EventWriter, first: Chunk, rest: AsyncIterator[Chunk], send: Send) -> bytes:
    """Chunks that came together leave in one write: a write costs as much as a dozen chunks do."""
    data = _event(events, first)
    if not first.more:
        await _write(send, data)
        data = b""
    try:
        async for chunk in rest:
            data += _event(events, chunk)
            if not chunk.more or len(data) > MAX_WRITE:
                await _write(send, data)
                data = b""
    except GatewayError:
        await _write(send, data)
        raise
    return data + events.end()


def _event(events: EventWriter, chunk: Chunk) -> bytes:
    return events.event(chunk) if chunk.comment is None else events.comment(chunk.comment)


async def _write(send: Send, data: bytes) -> None:
    if data:
        await send({"type": "http.response.body", "body": data, "more_body": True})


async def _end(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data})


def make_call(context: Context, request: ChatRequest, scope: Scope) -> Call:
    """The call for the pipeline. Raises ``UnknownModel``, alike for what is not there and what is not allowed."""
    principal = context.caller()
    policy = context.runtime.policy
    model = policy.resolve(request.model)
    if model is None or not (principal.may_use(model) or principal.may_use(request.model)):
        raise UnknownModel.named(request.model)
    traceparent, cache_control, deadline = "", "", None
    for name, value in scope["headers"]:
        if name == b"traceparent":
            traceparent = value.decode("latin-1")
        elif name == b"cache-control":
            # The lists of several headers are one list (RFC 9110, 5.3).
            cache_control += ("," if cache_control else "") + value.decode("latin-1")
        elif name == b"x-tollgate-deadline":
            deadline = context.started + _seconds(value.decode("latin-1"))
    return Call(
        request_id=context.request_id,
        principal=principal,
        request=request,
        policy=policy,
        receipt=Receipt(context.request_id, time.time()),
        started=context.started,
        headers={"traceparent": traceparent, "x-request-id": context.request_id},
        model=model,
        deadline=deadline,
        cache_control=cache_control,
    )


_DEADLINE = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)(ms|s)?", re.ASCII)


def _seconds(text: str) -> float:
    match = _DEADLINE.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise BadRequest(
            "The header x-tollgate-deadline should be a time from now, such as 2.5s or 800ms.",
            param="x-tollgate-deadline",
            code="invalid_value",
        )
    return float(match[1]) * (0.001 if match[2] == "ms" else 1.0)


def _headers(call: Call) -> Headers:
    answered = call.candidate.model if call.candidate else call.model
    return [
        (b"x-tollgate-model", answered.encode()),
        *(
            (name.encode(), value.encode())
            for name, value in call.reply_headers.items()
            if name != "x-tollgate-model"
        ),
    ]
