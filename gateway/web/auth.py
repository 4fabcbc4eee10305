"""Who is asking? Every path needs a key, except those in the short public list."""

from __future__ import annotations

import time
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import Unauthenticated
from gateway.web.context import Context


class Auth:
    """Default-deny: a request without a valid key goes no further, whatever its path.

    The key comes as ``Authorization: Bearer …``, as OpenAI's clients send it.
    """

    def __init__(self, app: ASGIApp, *, public: Collection[str]) -> None:
        self._app = app
        self._public = frozenset(public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._public:
            context = Context.of(scope)
            context.principal = context.runtime.keys.find(_presented(scope), time.time())
        await self._app(scope, receive, send)


def _presented(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, key = str(value, "latin-1").partition(" ")
            if scheme.lower() != "bearer" or not key.strip():
                raise Unauthenticated(
                    "The Authorization header is not of the form 'Bearer KEY'. Send your API key that way."
                )
            return key.strip()
    raise Unauthenticated("No API key. Send it in the header 'Authorization: Bearer KEY'.")
