"""``/v1/moderations``: what the toxicity guard makes of texts, in OpenAI's shape."""

from __future__ import annotations

import time
from contextlib import aclosing

from starlette.types import Receive, Scope, Send

from gateway.guards.moderator import MODEL
from gateway.types import Call, ChatRequest, Receipt
from gateway.web.body import cancel_on_disconnect
from gateway.web.body_parser import BodyReader
from gateway.web.context import RequestContext
from gateway.web.sending import encoded, send_body
from gateway.wire.openai import moderations as openai_moderations


class Moderations:
    """https://platform.openai.com/docs/api-reference/moderations. A request counts for the caller's limits, its
    tokens do not.
    """

    def __init__(self, reader: BodyReader) -> None:
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        texts = await self._reader.read(openai_moderations.read_request, scope, receive)
        call = _call(context, texts, scope)
        cancel_on_disconnect(scope)
        async with aclosing(context.runtime.moderator(call)) as chunks:
            results = [chunk.delta["moderation"] async for chunk in chunks if chunk.delta is not None]
        body = openai_moderations.write_answer(context.request_id, MODEL, results)
        await send_body(send, body, headers=encoded(call.reply_headers))


def _call(context: RequestContext, texts: list[str], scope: Scope) -> Call:
    """The texts travel as a parameter: as a prompt they would count as tokens."""
    return Call(
        request_id=context.request_id,
        principal=context.caller(),
        request=ChatRequest(MODEL, prompt=[], params={"input": texts}, embeds=True),
        policy=context.runtime.policy,
        route=scope["path"],
        receipt=Receipt(context.request_id, time.time()),
        started=context.started,
        line=context.line,
        headers={
            "traceparent": context.headers.get(b"traceparent", b"").decode("latin-1"),
            "x-request-id": context.request_id,
        },
        reply_headers=context.reply_headers,
    )
