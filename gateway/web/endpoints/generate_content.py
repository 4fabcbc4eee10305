"""``/v1beta/models/{model}:…``: Google's Gemini API, whose paths name the model and what is wanted of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from urllib.parse import parse_qs

import orjson
from starlette.types import Receive, Scope, Send

from gateway.errors import Blocked, ContentPolicy, GatewayError
from gateway.policy.schema.limits import RequestLimits
from gateway.types import Call, ChatRequest, Json
from gateway.web.body import ClientDisconnected, WhileConnected, read_body
from gateway.web.body_parser import BodyParser
from gateway.web.context import RequestContext
from gateway.web.endpoints.count_tokens import count
from gateway.web.endpoints.generate import make_call, reply_headers, write_stream, write_whole
from gateway.web.event_stream import EventStream
from gateway.web.responses import send_body
from gateway.wire.dialect import BodyWriter
from gateway.wire.gemini import body_to_request, embeddings
from gateway.wire.gemini.chunks_to_answers import GeminiArrayWriter, GeminiBodyWriter, GeminiEventWriter

MODELS = "/v1beta/models"


class _OfModel:
    """One method of a model's: where it is asked, and what it reads."""

    def __init__(self, reader: BodyParser, *, max_body: int) -> None:
        self._reader = reader
        self._max_body = max_body

    async def _request(
        self,
        read: Callable[[bytes, RequestLimits], ChatRequest],
        context: RequestContext,
        scope: Scope,
        receive: Receive,
    ) -> ChatRequest:
        data = await read_body(scope, receive, self._max_body)
        limits, owner = context.runtime.policy.limits, context.caller().tenant
        return await self._reader.read(read, data, limits, owner)


class GenerateContent(_OfModel):
    """``:generateContent``, and with ``streams`` ``:streamGenerateContent``: events where the query says ``alt=sse``,
    and a JSON array otherwise."""

    def __init__(self, reader: BodyParser, *, max_body: int, heartbeat: float, streams: bool) -> None:
        """``heartbeat`` is the longest silence, in seconds, of a stream; 0 is without bound."""
        super().__init__(reader, max_body=max_body)
        self._heartbeat = heartbeat
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        read = partial(body_to_request.read_request, model=_model(scope), stream=self._streams)
        try:
            request = await self._request(read, context, scope, receive)
            call = make_call(context, request, _asked(scope))
            events = self._writer(scope, call) if self._streams else None
            try:
                async with (
                    WhileConnected(scope, receive),
                    aclosing(context.runtime.handler(call)) as chunks,
                ):
                    if events is None:
                        await write_whole(GeminiBodyWriter(call), call, chunks, send)
                    else:
                        await write_stream(
                            events, call, chunks, scope, send, heartbeat=self._heartbeat, kind=events.kind
                        )
            except (Blocked, ContentPolicy) as error:
                # In this API the answer to a prompt that was blocked is no error.
                await self._blocked(events, call, error, send)
            except GatewayError as error:
                error.headers = {**call.reply_headers, **error.headers}
                raise
        except ClientDisconnected:
            return

    def _writer(self, scope: Scope, call: Call) -> GeminiEventWriter:
        wanted = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("alt", [""])[-1]
        return GeminiEventWriter(call) if wanted == "sse" else GeminiArrayWriter(call)

    async def _blocked(
        self, events: GeminiEventWriter | None, call: Call, error: GatewayError, send: Send
    ) -> None:
        headers = [
            *reply_headers(call),
            *((name.encode(), value.encode()) for name, value in error.headers.items()),
        ]
        if events is None:
            await send_body(send, GeminiBodyWriter(call).blocked(error), headers=headers)
        else:
            stream = EventStream(send, lambda: headers, heartbeat=b"", every=0, kind=events.kind)
            await stream.end(events.blocked(error))


class CountTokens(_OfModel):
    """``:countTokens``, counted as Anthropic's callers' prompts are."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        read = partial(body_to_request.read_count_request, model=_model(scope))
        try:
            request = await self._request(read, context, scope, receive)
            async with WhileConnected(scope, receive):
                counted, headers = await count(context, request, _asked(scope))
        except ClientDisconnected:
            return
        native = counted.get("native")
        body: Json = native if isinstance(native, dict) else {"totalTokens": counted["input_tokens"]}
        await send_body(send, orjson.dumps(body), headers=headers)


class EmbedContent(_OfModel):
    """``:embedContent``, and with ``batch`` ``:batchEmbedContents``."""

    def __init__(self, reader: BodyParser, *, max_body: int, batch: bool) -> None:
        super().__init__(reader, max_body=max_body)
        self._batch = batch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        read = partial(embeddings.read_batch if self._batch else embeddings.read_one, model=_model(scope))
        try:
            request = await self._request(read, context, scope, receive)
            call = make_call(context, request, _asked(scope))
            whole: BodyWriter = embeddings.EmbeddingsWriter(call, batch=self._batch)
            try:
                async with (
                    WhileConnected(scope, receive),
                    aclosing(context.runtime.handler(call)) as chunks,
                ):
                    await write_whole(whole, call, chunks, send)
            except GatewayError as error:
                error.headers = {**call.reply_headers, **error.headers}
                raise
        except ClientDisconnected:
            return


def _model(scope: Scope) -> str:
    model: str = scope["path_params"]["model"]
    return model


def _asked(scope: Scope) -> Scope:
    """For the call: the path without the model, which may be anybody's, and no query, which no provider is to see."""
    return {**scope, "path": MODELS, "query_string": b""}
