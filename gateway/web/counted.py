"""Requests that ask no model: they count for the limits on requests of whoever sends them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Scope

from gateway.types import Call, ChatRequest, Receipt
from gateway.web.context import RequestContext
from gateway.web.sending import encoded


@asynccontextmanager
async def counted(scope: Scope, name: str) -> AsyncIterator[list[tuple[bytes, bytes]]]:
    """``async with counted(scope, "files") as headers:`` the request, which is under way until the block ends.

    ``headers`` are the ``x-ratelimit`` ones, for its answer; errors get them, too. Raises ``RateLimited`` and
    ``Overloaded``. ``name`` stands in refusals for the model.
    """
    context = RequestContext.of(scope)
    quotas = context.runtime.quotas
    call = Call(
        request_id=context.request_id,
        principal=context.caller(),
        request=ChatRequest(name, prompt=[], embeds=True),
        policy=context.runtime.policy,
        route=scope["path"],
        receipt=Receipt(context.request_id, time.time()),
        started=context.started,
        reply_headers=context.reply_headers,
    )
    reservation = await quotas.reserve(call)
    try:
        yield encoded(call.reply_headers)
    finally:
        if reservation is not None:
            quotas.settle(reservation, tokens=0, nanodollars=0)
