"""``/admin/api/playground``: a chat completion for who is signed in at the page, by the key of the session."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.admin.api.operation import ROOT
from gateway.admin.endpoint import must_be_enabled
from gateway.errors import Forbidden
from gateway.web.context import RequestContext
from gateway.web.operation import EVENTS, JSON, Operation
from gateway.wire.openai.chat import ChatBody

PATH = ROOT + "/playground"
OPERATION = Operation(
    *("POST", PATH, "playground", "As /v1/chat/completions, for the page", "admin"),
    *({JSON: None, EVENTS: None}, 200, None, ChatBody, (400, 404, 413, 415, 429, 502, 503, 504)),
    scope="admin",
)


class Playground:
    """``chat`` answers ``/v1/chat/completions``."""

    def __init__(self, chat: ASGIApp) -> None:
        self._chat = chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = RequestContext.of(scope)
        must_be_enabled(scope)
        if "inference" not in context.caller().scopes:
            raise Forbidden(
                "This key is for the page only. Give the playground another one, of scope 'inference'.",
                code="wrong_scope",
            )
        await self._chat(scope, receive, send)
