"""``/v1/moderations``: what the toxicity guard makes of texts, in OpenAI's shape."""

from __future__ import annotations

import time
from contextlib import aclosing

from starlette.types import Receive, Scope, Send

from gateway.errors import GatewayError
from gateway.guards.actions.moderator import MODEL
from gateway.types import Call, ChatRequest, Receipt
from gateway.web.body import ClientDisconnected, WhileConnected, read_body
from gateway.web.body_parser import BodyParser
from gateway.web.context import RequestContext
from gateway.web.responses import send_body
from gateway.wire.openai import moderations as openai_moderations


class Moderations:
    """https://platform.openai.com/docs/api-reference/moderations. A request counts for the caller's limits, its
    tokens do not.
    """

    def __init__(self, reader: BodyParser, *, max_body: int) -> None:
        self._reader = reader
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        try:
            data = await read_body(scope, receive, self._max_body)
            limits, owner = context.runtime.policy.limits, context.caller().tenant
            texts = await self._reader.read(openai_moderations.read_request, data, limits, owner)
            call = _call(context, texts, scope)
            try:
                async with (
                    WhileConnected(scope, receive),
                    aclosing(context.runtime.moderator(call)) as chunks,
                ):
                    results = [chunk.delta["moderation"] async for chunk in chunks if chunk.delta is not None]
                    body = openai_moderations.write_answer(context.request_id, MODEL, results)
                    headers = [(name.encode(), value.encode()) for name, value in call.reply_headers.items()]
                    await send_body(send, body, headers=headers)
            except GatewayError as error:
                error.headers = {**call.reply_headers, **error.headers}
                raise
        except ClientDisconnected:
            return


def _call(context: RequestContext, texts: list[str], scope: Scope) -> Call:
    """The texts travel as a parameter: as a prompt they would count as tokens."""
    headers = dict(scope["headers"])
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
            "traceparent": headers.get(b"traceparent", b"").decode("latin-1"),
            "x-request-id": context.request_id,
        },
    )
