"""From a path to its endpoint: Starlette's router, with a shortcut to the endpoints that carry the load."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import NoReturn

from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.routing import Router as StarletteRouter
from starlette.types import Receive, Scope, Send

from gateway.errors import GatewayError, MethodNotAllowed, NotFound
from gateway.web.unsupported_paths import explanation

Lifespan = Callable[[object], AbstractAsyncContextManager[None]]


class EndpointRouter:
    """Raises ``NotFound`` and ``MethodNotAllowed`` for what no route takes.

    A POST to one of ``fixed_posts`` need not pass here: Starlette tries one regular expression after the other, and
    wraps every request in an exception handler, which ``Dispatcher`` is for all of them.
    """

    def __init__(self, routes: Sequence[Route], lifespan: Lifespan) -> None:
        # Paths arrive in canonical form, so there is nothing to redirect to.
        self._router = StarletteRouter(routes, redirect_slashes=False, lifespan=lifespan)
        self.fixed_posts: Mapping[str, Route] = {
            route.path: route
            for route in routes
            if route.methods is not None and "POST" in route.methods and "{" not in route.path
        }
        self._served = [
            f"{method} {route.path.replace(':path', '')}"
            for route in routes
            for method in sorted((route.methods or set()) - {"HEAD"}, reverse=True)
            if route.path.startswith(("/v1/", "/v1beta/"))
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            # With this Starlette raises its 404 and 405 instead of answering by itself.
            scope["app"] = self
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            _translate(scope, error, self._served)


def _translate(scope: Scope, error: HTTPException, served: list[str]) -> NoReturn:
    """Starlette's 404 and 405 as errors of ours."""
    path, method = scope["path"], scope["method"]
    if error.status_code == 404:
        raise NotFound(explanation(path, served)) from None
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow", "")
        raise MethodNotAllowed(f"'{path}' does not take {method}; use {allow}.", allow=allow) from None
    fault = GatewayError(error.detail, code="invalid_request")
    fault.status, fault.type = error.status_code, "invalid_request_error"
    raise fault from None
