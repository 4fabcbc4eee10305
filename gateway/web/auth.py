"""Authentication of every request, except for the few public paths."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import Forbidden
from gateway.server.cycle import CONNECTION_STATE, ConnectionState
from gateway.sidecar.api import TENANT
from gateway.types import Principal
from gateway.web.context import RequestContext
from gateway.web.session_auth import SessionAuth

if TYPE_CHECKING:
    from gateway.runtime.runtime import Runtime


class AuthMiddleware:
    """Default-deny: a request without a valid key goes no further, whatever its path."""

    def __init__(self, app: ASGIApp, *, public: Collection[str], sessions: SessionAuth | None = None) -> None:
        """``sessions`` are accepted at ``/admin``."""
        self._app = app
        self._sessions = sessions
        self._public = frozenset(public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self._public:
            context = RequestContext.of(scope)
            context.principal = await self._caller(scope)
            context.authenticate = self._caller_by
            connection: ConnectionState | None = scope.get(CONNECTION_STATE)
            if connection is not None and not connection.authenticated:
                connection.authenticate()
            TENANT.set(context.principal.tenant)  # for whatever this request's task does
        await self._app(scope, receive, send)

    async def _caller(self, scope: Scope) -> Principal:
        signed_in = None
        if self._sessions is not None and scope["path"].startswith("/admin/"):
            signed_in = self._sessions.principal(scope)
        principal = signed_in or await RequestContext.of(scope).runtime.authenticator.principal(scope)
        _check_scope(principal, scope["path"])
        return principal

    async def _caller_by(self, scope: Scope, runtime: Runtime) -> Principal:
        later = dict(scope)
        RequestContext(RequestContext.of(scope).request_id, runtime).put(later)
        return await self._caller(later)


def _check_scope(principal: Principal, path: str) -> None:
    """Raises ``Forbidden`` for a key that opens other paths than this one."""
    needed: Literal["inference", "admin"] = "admin" if path.startswith("/admin/") else "inference"
    if needed not in principal.scopes:
        raise Forbidden(
            f"This API key is for {' and '.join(principal.scopes)} only. Use one whose 'scopes' have '{needed}'.",
            code="wrong_scope",
        )
