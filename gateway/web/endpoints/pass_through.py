"""The endpoints of APIs that do not chat: their answers go through all stages, and on to the caller as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager

import orjson
from starlette.types import Receive, Scope, Send

from gateway.apis import Api
from gateway.errors import GatewayError, UpstreamFailed
from gateway.policy.schema.limits import RequestLimits
from gateway.server.cycle import TAKE_BY
from gateway.types import Call, ChatRequest, Chunk
from gateway.web.body import cancel_on_disconnect
from gateway.web.body_parser import BodyReader
from gateway.web.calls import make_call, reply_headers
from gateway.web.context import RequestContext
from gateway.web.event_stream import EventStream
from gateway.web.sending import Headers, send_body
from gateway.web.upload import receive_form
from gateway.wire import sse
from gateway.wire.apis.forms import read_form
from gateway.wire.openai.errors import error_body

Read = Callable[[RequestContext, Scope, Receive], AbstractAsyncContextManager[ChatRequest]]
"""Reads a request, and keeps its upload for as long as it may have to be sent again. Raises ``BadRequest``."""
_OF_SOUND = ("transcription", "translation")
_EVENTS = "text/event-stream"
_NOT_A_PAGE = (b"x-content-type-options", b"nosniff")
"""What a provider sends is shown as what it says it is, or not at all."""


def json_reader(read_request: Callable[[bytes, RequestLimits], ChatRequest], reader: BodyReader) -> Read:
    """``read_request`` is a function of a module's top level."""

    @asynccontextmanager
    async def read(context: RequestContext, scope: Scope, receive: Receive) -> AsyncIterator[ChatRequest]:
        yield await reader.read(read_request, scope, receive)

    return read


def form_reader(api: Api, *, max_body: int) -> Read:
    @asynccontextmanager
    async def read(context: RequestContext, scope: Scope, receive: Receive) -> AsyncIterator[ChatRequest]:
        form = await receive_form(context.headers, receive, max_body)
        try:
            files = [file.name for file in form.files]
            request = read_form(api, form, form.texts, files, context.deployment)
            if api in _OF_SOUND:
                await asyncio.to_thread(form.listen)
            yield request
        finally:
            form.close()

    return read


class PassThrough:
    """The ASGI endpoint of one of these APIs."""

    def __init__(self, read: Read, *, heartbeat: float) -> None:
        """``heartbeat`` is the longest silence, in seconds, of a stream of events; 0 is without bound."""
        self._read = read
        self._heartbeat = heartbeat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        async with self._read(context, scope, receive) as request:
            call = make_call(context, request, scope)
            cancel_on_disconnect(scope)
            async with aclosing(context.runtime.handler(call)) as chunks:
                await self._answer(call, chunks, scope, send)

    async def _answer(self, call: Call, chunks: AsyncIterator[Chunk], scope: Scope, send: Send) -> None:
        first = await anext(chunks, None)
        while first is not None and not first.delta:
            first = await anext(chunks, None)  # a place in a queue, which only events could tell
        if first is None or first.delta is None:
            raise UpstreamFailed("The model's server sent an empty answer.", code="upstream_empty")
        kind = str(first.envelope.get("content_type", "application/octet-stream"))
        if "json" in first.delta:
            async for _ in chunks:
                pass
            headers = [*reply_headers(call), _NOT_A_PAGE]
            await send_body(send, first.delta["json"], headers=headers, kind=kind.encode("latin-1"))
            return
        time_left = call.timeouts.total
        if call.deadline is not None:
            time_left = min(time_left, call.deadline - time.perf_counter())
        scope[TAKE_BY] = asyncio.get_running_loop().time() + time_left
        if kind.lower().startswith(_EVENTS):
            await self._write_events(call, first, chunks, scope, send)
        else:
            await _write_parts(call, kind, first, chunks, send)

    async def _write_events(
        self, call: Call, first: Chunk, chunks: AsyncIterator[Chunk], scope: Scope, send: Send
    ) -> None:
        stream = EventStream(
            send,
            lambda: [*reply_headers(call), _NOT_A_PAGE],
            heartbeat=sse.comment("waiting"),
            every=self._heartbeat,
            scope=scope,
        )
        end = b""
        with stream:
            await stream.write(_part(first))
            try:
                async for chunk in chunks:
                    if part := _part(chunk):
                        await stream.write(part)
            except GatewayError as error:
                told = orjson.loads(error_body(error, call.request_id))
                end = b"event: error\n" + sse.event(orjson.dumps({"type": "error", **told}))
            await stream.end(end)


async def _write_parts(call: Call, kind: str, first: Chunk, chunks: AsyncIterator[Chunk], send: Send) -> None:
    """Sound, or text. Where it breaks off, the connection is cut: nothing else tells half a sound from a whole one."""
    headers: Headers = [
        (b"content-type", kind.encode("latin-1")),
        *reply_headers(call),
        _NOT_A_PAGE,
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": _part(first), "more_body": True})
    try:
        async for chunk in chunks:
            if part := _part(chunk):
                await send({"type": "http.response.body", "body": part, "more_body": True})
    except GatewayError:
        return  # whoever serves this closes a connection whose response is not complete
    await send({"type": "http.response.body", "body": b""})


def _part(chunk: Chunk) -> bytes:
    return chunk.delta.get("bytes", b"") if chunk.delta else b""
