"""``/v1/chat/completions`` and ``/v1/completions``: a request in, a stream of chunks out, as one body or as events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress

import orjson
from starlette.types import Receive, Scope, Send

from gateway.errors import TOO_LATE, GatewayError, Internal, ShuttingDown, UnknownModel, UpstreamFailed
from gateway.types import Call, ChatRequest, Chunk, Receipt
from gateway.web.body import ClientLeft, WhileConnected, read_body
from gateway.web.context import Context
from gateway.web.responses import Headers, send_body
from gateway.wire import sse
from gateway.wire.answer import Dialect, Events, Whole

LAST_WORDS = 0.5
"""Seconds in which a client takes the news that its answer is cut, or does not."""


class Generate:
    """The ASGI endpoint of one dialect."""

    def __init__(self, dialect: Dialect, *, max_body: int) -> None:
        self._dialect = dialect
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = Context.of(scope)
        try:
            request = self._dialect.read_request(await read_body(scope, receive, self._max_body))
            call = _call(context, request, scope)
            async with (
                WhileConnected(receive),
                aclosing(context.runtime.handler(call)) as chunks,
            ):
                first = await anext(chunks, None)
                if first is None:
                    raise UpstreamFailed("The model's server sent an empty answer.")
                if request.stream:
                    await self._stream(call, first, chunks, send)
                else:
                    await self._whole(call, first, chunks, send)
        except ClientLeft:
            return

    async def _whole(self, call: Call, first: Chunk, rest: AsyncIterator[Chunk], send: Send) -> None:
        whole = Whole(self._dialect, call.request_id, call.request.model)
        whole.add(first)
        async for chunk in rest:
            whole.add(chunk)
        await send_body(send, whole.body(), headers=_headers(call))

    async def _stream(self, call: Call, first: Chunk, rest: AsyncIterator[Chunk], send: Send) -> None:
        events = Events(
            self._dialect, call.request_id, call.request.model, include_usage=call.request.include_usage
        )
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [
                    (b"content-type", b"text/event-stream; charset=utf-8"),
                    (b"cache-control", b"no-cache"),
                    (b"x-accel-buffering", b"no"),
                    *_headers(call),
                ],
            }
        )
        await _write(send, events.event(first))
        try:
            async for chunk in rest:
                await _write(send, events.event(chunk))
            end = events.end()
        except GatewayError as error:
            # Past the first byte an error can only be an event; without [DONE], so that nobody takes it for success.
            end = sse.event(orjson.dumps(error.body()))
        except asyncio.CancelledError:
            # The server gives up on what outlasts the drain timeout. A client that has left is cancelled too, and
            # what is sent to it goes nowhere; one that does not read must not hold up the end.
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS):
                    await _end(send, sse.event(orjson.dumps(ShuttingDown(TOO_LATE, retry_after=1.0).body())))
            raise
        except Exception:
            fault = Internal(
                f"The gateway failed on this request. Its log has the reason under {call.request_id}."
            )
            await _end(send, sse.event(orjson.dumps(fault.body())))
            raise
        await _end(send, end)


async def _write(send: Send, data: bytes) -> None:
    if data:
        await send({"type": "http.response.body", "body": data, "more_body": True})


async def _end(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data})


def _call(context: Context, request: ChatRequest, scope: Scope) -> Call:
    """The call for the pipeline. Raises ``UnknownModel``, alike for what is not there and what is not allowed."""
    principal = context.caller()
    policy = context.runtime.policy
    if request.model not in policy.models or not principal.may_use(request.model):
        raise UnknownModel(
            f"The model '{request.model}' does not exist or your key may not use it. GET /v1/models lists yours.",
            param="model",
        )
    traceparent = dict(scope["headers"]).get(b"traceparent", b"").decode("latin-1")
    return Call(
        request_id=context.request_id,
        principal=principal,
        request=request,
        policy=policy,
        receipt=Receipt(context.request_id, time.time()),
        started=context.started,
        headers={"traceparent": traceparent, "x-request-id": context.request_id},
    )


def _headers(call: Call) -> Headers:
    return [(b"x-tollgate-model", call.request.model.encode())]
