"""Spans of a sampled request: how long each stage took to decide, and each attempt. Only where there is telemetry."""

from __future__ import annotations

from contextlib import aclosing

from gateway.observe.telemetry.attempt_span import AttemptSpan
from gateway.observe.telemetry.content import Answer
from gateway.observe.telemetry.telemetry import Telemetry
from gateway.residency import is_outside
from gateway.types import Call, Chunks, Handler, Stage


def entering(name: str) -> Stage:
    """Notes that a request has come as far as the stage ``name``, which follows."""

    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            call.enters(name)
            return following(call)

        return handle

    return stage


def content(following: Handler) -> Handler:
    """Keeps what was asked and answered, where the policy wants it told. Stands where all of it is masked."""

    def handle(call: Call) -> Chunks:
        trace = call.trace
        if trace is None or not trace.content or _stays(call):
            return following(call)
        trace.asked = call.request
        trace.answer = answer = Answer()
        return kept(call, answer, following)

    async def kept(call: Call, answer: Answer, following: Handler) -> Chunks:
        async with aclosing(following(call)) as chunks:
            async for chunk in chunks:
                answer.add(chunk)
                yield chunk

    return handle


def attempt(telemetry: Telemetry) -> Stage:
    """A span for each attempt; its server continues the trace from there. What goes to the call's sink it does not see:
    the first of an answer, or the last, is not among it."""

    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            if call.trace is None:
                return following(call)
            return traced(call, AttemptSpan(telemetry, call, call.trace))

        async def traced(call: Call, span: AttemptSpan) -> Chunks:
            error: BaseException | None = None
            try:
                async with aclosing(following(call)) as chunks:
                    async for chunk in chunks:
                        span.add(chunk)
                        yield chunk
            except BaseException as raised:
                error = raised
                raise
            finally:
                span.end(error)

        return handle

    return stage


def _stays(call: Call) -> bool:
    """Whether the content is only for local backends, or for other regions than that of the receiver of traces."""
    tenant = call.policy.tenants.get(call.principal.tenant)
    return (
        call.local_only
        or (tenant is not None and tenant.local_only)
        or is_outside(call, call.policy.regions.get("telemetry"))
    )
