"""``/v1beta/models/{model}:…``: Google's Gemini API, whose paths name the model and what is wanted of it."""

from __future__ import annotations

from functools import partial
from urllib.parse import parse_qs

import orjson
from starlette.types import Receive, Scope, Send

from gateway.errors import Blocked, ContentPolicy, GatewayError
from gateway.types import Call, Json
from gateway.web.answering import answer_stream, answer_whole
from gateway.web.body import cancel_on_disconnect
from gateway.web.body_parser import BodyReader
from gateway.web.calls import make_call, reply_headers
from gateway.web.context import RequestContext
from gateway.web.endpoints.count_tokens import count
from gateway.web.event_stream import EventStream
from gateway.web.sending import encoded, send_body
from gateway.wire.gemini import body_to_request, embeddings
from gateway.wire.gemini.chunks_to_answers import GeminiArrayWriter, GeminiBodyWriter, GeminiEventWriter

MODELS = "/v1beta/models"


class GenerateContent:
    """``:generateContent``, and with ``streams`` ``:streamGenerateContent``: events where the query says ``alt=sse``,
    and a JSON array otherwise."""

    def __init__(self, reader: BodyReader, *, heartbeat: float, streams: bool) -> None:
        """``heartbeat`` is the longest silence, in seconds, of a stream; 0 is without bound."""
        self._reader = reader
        self._heartbeat = heartbeat
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        read = partial(body_to_request.read_request, model=_model(scope), stream=self._streams)
        request = await self._reader.read(read, scope, receive)
        call = make_call(context, request, _asked(scope))
        events = self._writer(scope, call) if self._streams else None
        try:
            if events is None:
                await answer_whole(context.runtime, call, GeminiBodyWriter(call), scope, send)
            else:
                await answer_stream(
                    context.runtime, call, events, scope, send, heartbeat=self._heartbeat, kind=events.kind
                )
        except (Blocked, ContentPolicy) as error:
            # In this API the answer to a prompt that was blocked is no error.
            await self._blocked(events, call, error, send)

    def _writer(self, scope: Scope, call: Call) -> GeminiEventWriter:
        wanted = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("alt", [""])[-1]
        return GeminiEventWriter(call) if wanted == "sse" else GeminiArrayWriter(call)

    async def _blocked(
        self, events: GeminiEventWriter | None, call: Call, error: GatewayError, send: Send
    ) -> None:
        headers = [*reply_headers(call), *encoded(error.headers)]
        if events is None:
            await send_body(send, GeminiBodyWriter(call).blocked(error), headers=headers)
        else:
            stream = EventStream(send, lambda: headers, heartbeat=b"", every=0, kind=events.kind)
            await stream.end(events.blocked(error))


class CountTokens:
    """``:countTokens``, counted as Anthropic's callers' prompts are."""

    def __init__(self, reader: BodyReader) -> None:
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        read = partial(body_to_request.read_count_request, model=_model(scope))
        request = await self._reader.read(read, scope, receive)
        cancel_on_disconnect(scope)
        counted, headers = await count(context, request, _asked(scope))
        native = counted.get("native")
        body: Json = native if isinstance(native, dict) else {"totalTokens": counted["input_tokens"]}
        await send_body(send, orjson.dumps(body), headers=headers)


class EmbedContent:
    """``:embedContent``, and with ``batch`` ``:batchEmbedContents``."""

    def __init__(self, reader: BodyReader, *, batch: bool) -> None:
        self._reader = reader
        self._batch = batch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        read = partial(embeddings.read_batch if self._batch else embeddings.read_one, model=_model(scope))
        request = await self._reader.read(read, scope, receive)
        call = make_call(context, request, _asked(scope))
        writer = embeddings.EmbeddingsWriter(call, batch=self._batch)
        await answer_whole(context.runtime, call, writer, scope, send)


def _model(scope: Scope) -> str:
    model: str = scope["path_params"]["model"]
    return model


def _asked(scope: Scope) -> Scope:
    """For the call: the path without the model, which may be anybody's, and no query, which no provider is to see."""
    return {**scope, "path": MODELS, "query_string": b""}
