"""``/v1/messages/count_tokens``: how many prompt tokens a request is thought to have, as quotas count them."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from gateway.web.body import ClientLeft, read_body
from gateway.web.context import Context
from gateway.web.endpoints.generate import make_call
from gateway.web.responses import send_json
from gateway.wire.anthropic.request_reader import read_count_request


class CountTokens:
    """https://platform.claude.com/docs/en/api/messages-count-tokens; an estimate, as the tokenizers are elsewhere."""

    def __init__(self, *, max_body: int) -> None:
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = Context.of(scope)
        try:
            request = read_count_request(await read_body(scope, receive, self._max_body))
        except ClientLeft:
            return
        call = make_call(context, request, scope)
        await send_json(send, {"input_tokens": context.runtime.quotas.estimator.demand(call).prompt})
