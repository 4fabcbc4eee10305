"""The ASGI app: from a request's head to its endpoint, and from what is raised to an answer in its caller's dialect."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import repeat
from typing import NamedTuple

from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import TOO_LATE, GatewayError, Internal, ShuttingDown
from gateway.observe.ended import level_of
from gateway.observe.events import log_event
from gateway.observe.metrics import Metrics
from gateway.observe.outcome import reason_of
from gateway.observe.tracing import sent_trace_id
from gateway.runtime.runtime import Runtime
from gateway.server.cycle import CONNECTION_STATE, ConnectionState
from gateway.server.headers import by_name
from gateway.web import another_server
from gateway.web.auth import Authentication
from gateway.web.body import ClientDisconnected
from gateway.web.canonical import canonical
from gateway.web.context import RequestContext, route_of
from gateway.web.cors import Cors
from gateway.web.dialect import Spoken, dialect_of, take_query_key
from gateway.web.operator_port import OperatorPort
from gateway.web.router import EndpointRouter
from gateway.wire.dialect import ErrorWriter

log = logging.getLogger(__name__)
requests = logging.getLogger("gateway.requests")

REQUEST_ID = (b"x-request-id",)
ANTHROPIC_ID = (*REQUEST_ID, b"request-id")
"""Anthropic's clients know it by the second name (https://platform.claude.com/docs/en/api/errors)."""


def new_request_id() -> str:
    """Ids begin with the time, in milliseconds, so that the ledger's rows are adjacent: random ids dirty a page
    each, which took three times as long to write.
    """
    return f"req_{time.time_ns() // 1_000_000:011x}{random.getrandbits(52):013x}"


class _Destination(NamedTuple):
    """Who answers a request, and how its caller is spoken to."""

    app: ASGIApp
    route: Route | None
    """None where the router is to find it."""
    error_body: ErrorWriter
    id_names: tuple[bytes, ...]
    deployment: str | None = None


class Dispatcher:
    """Gives each request its id and its context, finds out whose it is and who answers it, and answers what fails.

    Non-HTTP traffic is the router's.
    """

    def __init__(
        self,
        router: EndpointRouter,
        authentication: Authentication,
        *,
        current: Callable[[], Runtime],
        metrics: Metrics,
        error_writers: Mapping[Spoken, ErrorWriter],
        operator_port: OperatorPort | None = None,
    ) -> None:
        """``current`` returns the policy generation in force."""
        self._router = router
        self._authentication = authentication
        self._current = current
        self._metrics = metrics
        self._error_writers = error_writers
        self._operator_port = operator_port
        self._cors = Cors(metrics)
        self._posts = {
            path: self._destination(route.app, route, dialect_of({"path": path, "headers": ()}))
            for path, route in router.fixed_posts.items()
        }
        """What carries the load, by paths in canonical form."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        connection: ConnectionState | None = scope.get(CONNECTION_STATE)
        if connection is None:
            await another_server.serve(self, scope, receive, send)
            return
        runtime = self._current()
        if runtime.policy.cors.allow_origins:
            admitted = await self._cors.admit(runtime.policy.cors, scope, send)
            if admitted is None:
                return
            send = admitted
        to = self._posts.get(scope["path"]) if scope["method"] == "POST" else None
        if to is None:
            to = self._find(scope)
        context = RequestContext(
            new_request_id(),
            runtime,
            by_name(scope["headers"]),
            deployment=to.deployment,
            error_body=to.error_body,
        )
        context.put(scope)
        request_id = context.request_id.encode()
        status = 0

        def send_with_id(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *zip(to.id_names, repeat(request_id))]
            return send(message)

        with runtime.in_use():
            try:
                if self._operator_port is not None:
                    self._operator_port.check(scope)
                await self._authentication.admit(context, scope)
                if to.route is not None:
                    scope["route"] = to.route
                try:
                    await to.app(scope, receive, send_with_id)
                finally:
                    connection.on_disconnect = None
            except ClientDisconnected:
                pass
            except GatewayError as error:
                if status:
                    raise
                if not error.logged:
                    self._refused(context, scope, error)
                await context.fail(send_with_id, error)
            except asyncio.CancelledError:
                # If not its client, the server goes, and this request outlasted the drain timeout.
                if not (status or connection.disconnected):
                    await context.fail(send_with_id, ShuttingDown(TOO_LATE, retry_after=1.0))
            except Exception:
                log.exception("%s failed inside the gateway", context.request_id)
                if status:
                    raise
                fault = Internal(
                    f"The gateway failed on this request. Its log has the reason under {context.request_id}."
                )
                await context.fail(send_with_id, fault)
            finally:
                # The path's pattern, never the path itself: anyone can make up paths.
                route = scope["route"].path if "route" in scope else "none"
                self._metrics.http[route, str(status or 499)].pending += 1

    def _find(self, scope: Scope) -> _Destination:
        """For a path as its client wrote it, which becomes canonical."""
        scope["path"], deployment = canonical(scope["path"])
        to = self._posts.get(scope["path"]) if scope["method"] == "POST" else None
        if to is not None:
            return to._replace(deployment=deployment)
        spoken = dialect_of(scope)
        if spoken == "gemini":
            take_query_key(scope)
        return self._destination(self._router, None, spoken, deployment)

    def _destination(
        self, app: ASGIApp, route: Route | None, spoken: Spoken, deployment: str | None = None
    ) -> _Destination:
        names = ANTHROPIC_ID if spoken == "anthropic" else REQUEST_ID
        return _Destination(app, route, self._error_writers[spoken], names, deployment)

    def _refused(self, context: RequestContext, scope: Scope, error: GatewayError) -> None:
        """Log and record a request that was refused before any stage saw it."""
        principal, reason = context.principal, reason_of(error)
        # What operators ask to be changed is no question to a model.
        asks = "route" in scope and not scope["path"].startswith("/admin/")
        question = scope["method"] == "POST" and asks
        context.runtime.accounting.record_refusal(
            context.request_id, principal, error.status, reason, is_question=question
        )
        seconds = round(time.perf_counter() - context.started, 6)
        tenant, key_id = (principal.tenant, principal.key_id) if principal else (None, None)
        route = route_of(scope) or "none"
        trace_id = sent_trace_id(scope["headers"])
        telemetry = context.runtime.telemetry if question else None
        if telemetry is not None:
            telemetry.refused(
                context.request_id, route, scope["headers"], context.started, error.status, reason
            )
        log_event(
            requests,
            level_of(error.status),
            "request",
            f"{context.request_id} {route} {error.status} {seconds * 1000:.1f} ms {reason} tenant={tenant or '-'}",
            *(
                context.request_id,
                trace_id,
                tenant,
                key_id,
                None,
                None,
                error.status,
                reason,
            ),
            *(None, None, None, None, None, seconds),
        )
