"""``/v1/messages/count_tokens``: how many tokens a prompt has, by its provider's count or by our estimate."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

import orjson
from starlette.types import Receive, Scope, Send

from gateway.types import ChatRequest, Json
from gateway.web.body import cancel_on_disconnect
from gateway.web.body_parser import BodyReader
from gateway.web.calls import make_call
from gateway.web.context import RequestContext
from gateway.web.sending import Headers, encoded, send_body
from gateway.wire.anthropic.body_to_request import read_count_request

COUNTED_BY = b"x-tollgate-count"
"""The header that names who counted: ``provider``, or ``estimate``."""


class CountTokens:
    """https://platform.claude.com/docs/en/api/messages-count-tokens.

    Where the model's first target is Anthropic's API it is asked, past input guards, which change what it would see.
    For other models, and while it cannot be asked, the count is what quotas think.
    """

    def __init__(self, reader: BodyReader) -> None:
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        request = await self._reader.read(read_count_request, scope, receive)
        cancel_on_disconnect(scope)
        tokens, headers = await count(context, request, scope)
        await send_body(send, orjson.dumps(tokens), headers=headers)


async def count(
    context: RequestContext, request: ChatRequest, scope: Scope, residency: frozenset[str] | None = None
) -> tuple[dict[str, Json], Headers]:
    """``input_tokens`` and what else a provider says of a prompt, and headers that say who counted.

    It is a request for the limits of its caller, without any tokens. ``residency`` is that of what it continues.
    """
    call = make_call(context, replace(request, api="count_tokens"), scope)
    call.residency = residency
    async with aclosing(context.runtime.counter(call)) as chunks:
        counts = [dict(chunk.envelope) async for chunk in chunks if chunk.envelope]
    headers = encoded(call.reply_headers)
    if counts:
        return counts[0], [*headers, (COUNTED_BY, b"provider")]
    tokens = context.runtime.quotas.estimator.estimate(call).prompt
    return {"input_tokens": tokens}, [*headers, (COUNTED_BY, b"estimate")]
