"""Authentication of every request, except for the few public paths."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from starlette.types import Scope as Request

from gateway.errors import Forbidden, GatewayError
from gateway.policy.schema import Scope
from gateway.server.cycle import CONNECTION_STATE, ConnectionState
from gateway.sidecar.api import TENANT
from gateway.types import Principal
from gateway.web.context import RequestContext
from gateway.web.session_auth import SessionAuth

if TYPE_CHECKING:
    from gateway.runtime.runtime import Runtime

_ADMIN = "/admin/"


class Authentication:
    """Default-deny: a request without a valid key goes no further, whatever its path."""

    def __init__(
        self,
        *,
        public: Collection[str],
        sessions: SessionAuth | None = None,
        refused: Callable[[Request, Principal, GatewayError], Awaitable[None]] | None = None,
    ) -> None:
        """``sessions`` are accepted at ``/admin``; ``refused`` is told what those who signed in are refused."""
        self._sessions = sessions
        self._refused = refused
        self._public = frozenset(public)

    async def admit(self, context: RequestContext, request: Request) -> None:
        """Raises ``Unauthenticated``, ``Forbidden`` and ``AuthUnavailable``."""
        path: str = request["path"]
        if path in self._public:
            return
        if path.startswith(_ADMIN):
            context.principal = caller = await self._admin(context, request)
            context.authenticate = self._again
        else:
            caller = await context.runtime.authenticator.principal(request, context.headers)
            if "inference" not in caller.scopes:
                raise _wrong_scope(caller, "inference")
            context.principal = caller
        connection: ConnectionState = request[CONNECTION_STATE]
        if not connection.authenticated:
            connection.authenticate()
        TENANT.set(caller.tenant)  # for whatever this request's task does

    async def _admin(self, context: RequestContext, request: Request) -> Principal:
        caller = await self._signed_in(request)
        if caller is None:
            caller = await context.runtime.authenticator.principal(request, context.headers)
        if "admin" not in caller.scopes:
            raise _wrong_scope(caller, "admin")
        return caller

    async def _signed_in(self, request: Request) -> Principal | None:
        if self._sessions is None:
            return None
        try:
            return self._sessions.principal(request)
        except Forbidden as error:
            session = self._sessions.session(request)
            if session is not None and self._refused is not None:
                await self._refused(request, self._sessions.holder(request, session), error)
            raise

    async def _again(self, request: Request, runtime: Runtime) -> Principal:
        before, later = RequestContext.of(request), dict(request)
        context = RequestContext(before.request_id, runtime, before.headers)
        context.put(later)
        return await self._admin(context, later)


def _wrong_scope(caller: Principal, needed: Scope) -> Forbidden:
    """For a key that opens other paths than this one."""
    return Forbidden(
        f"This API key is for {' and '.join(caller.scopes)} only. Use one whose 'scopes' have '{needed}'.",
        code="wrong_scope",
    )
