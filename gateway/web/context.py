"""The state of one request that the layers of ``web`` share; ``Dispatcher`` makes it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.types import Scope, Send

from gateway.errors import GatewayError, Internal
from gateway.server.headers import RequestHeaders
from gateway.types import BatchLine, Principal
from gateway.web.sending import send_error
from gateway.wire.dialect import ErrorWriter
from gateway.wire.openai.errors import error_body as openai_error

if TYPE_CHECKING:
    from gateway.runtime.runtime import Runtime

_KEY = "tollgate.context"


def route_of(scope: Scope) -> str:
    """The path's pattern, never the path itself: anyone can make up paths. Empty where there is none."""
    return scope["route"].path if "route" in scope else ""


@dataclass(slots=True)
class RequestContext:
    request_id: str
    runtime: Runtime
    """The policy generation in force when the request arrived; it serves the request to its end."""
    headers: RequestHeaders
    principal: Principal | None = None
    authenticate: Callable[[Scope, Runtime], Awaitable[Principal]] | None = None
    """Who the caller is by a later policy, for answers that go on for hours. Raises as authentication does. Does not
    hold the scope, which holds this object: garbage in circles waits for the collector, and that for 20 ms a time."""
    deployment: str | None = None
    """The model that the path names, as Azure's do; it takes precedence over the body's."""
    line: BatchLine | None = None
    """What it runs under as a line of a batch."""
    error_body: ErrorWriter = openai_error
    """Renders an error in the caller's dialect."""
    reply_headers: dict[str, str] = field(default_factory=dict)
    """The call's, for the answer or the error."""
    started: float = field(default_factory=time.perf_counter)

    def caller(self) -> Principal:
        """The authenticated caller, on a path that needs one."""
        if self.principal is None:
            raise Internal("A request without a principal got past authentication.")
        return self.principal

    async def fail(self, send: Send, error: GatewayError) -> None:
        """Send an error in the caller's dialect."""
        headers = {**self.reply_headers, **error.headers}
        await send_error(send, error, self.error_body(error, self.request_id), headers)

    def put(self, scope: Scope) -> None:
        scope[_KEY] = self

    @staticmethod
    def of(scope: Scope) -> RequestContext:
        context: RequestContext = scope[_KEY]
        return context
