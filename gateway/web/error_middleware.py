"""Middleware that gives each request its id and context, and turns exceptions into error responses."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import TOO_LATE, GatewayError, Internal, ShuttingDown
from gateway.observe.events import log_event
from gateway.observe.metrics import Metrics
from gateway.observe.outcome import reason_of
from gateway.observe.tracing import level_of, sent_trace_id
from gateway.runtime.runtime import Runtime
from gateway.web.canonical import canonical
from gateway.web.context import RequestContext, route_of
from gateway.web.dialect import Spoken, dialect_of, take_query_key
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


class ErrorMiddleware:
    """``current`` returns the policy generation in force. Non-HTTP traffic is passed through."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        current: Callable[[], Runtime],
        metrics: Metrics,
        error_writers: Mapping[Spoken, ErrorWriter],
    ) -> None:
        self._app = app
        self._current = current
        self._metrics = metrics
        self._error_writers = error_writers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        runtime = self._current()
        context = RequestContext(new_request_id(), runtime)
        scope["path"], context.deployment = canonical(scope["path"])
        spoken = dialect_of(scope)
        context.error_body = self._error_writers[spoken]
        if spoken == "gemini":
            take_query_key(scope)
        with runtime.in_use():
            await self._answer(context, spoken, scope, receive, send)

    async def _answer(
        self, context: RequestContext, spoken: Spoken, scope: Scope, receive: Receive, send: Send
    ) -> None:
        context.put(scope)
        names = ANTHROPIC_ID if spoken == "anthropic" else REQUEST_ID
        id_headers = [(name, context.request_id.encode()) for name in names]
        status = 0

        def send_with_id(message: Message) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *id_headers]
            return send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except GatewayError as error:
            if status:
                raise
            if not error.logged:
                self._refused(context, scope, error)
            await context.fail(send_with_id, error)
        except asyncio.CancelledError:
            # The server is stopping and this request outlasted the drain timeout.
            if not status:
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
            route = route_of(scope) or "none"
            self._metrics.http[route, str(status or 499)].inc()

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
