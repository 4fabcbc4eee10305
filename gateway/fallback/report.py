"""What failed tries leave behind: a line in the log each, the counts, and what is known of a backend's credentials."""

from __future__ import annotations

import logging

from gateway.errors import (
    GatewayError,
    Overloaded,
    RateLimited,
    Upstream,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.fallback.attempt import Attempt
from gateway.fallback.switchboard import Switchboard
from gateway.observe.events import Fact, tell
from gateway.observe.metrics import Metrics
from gateway.observe.outcome import reason_of
from gateway.observe.tracing import trace_id_of
from gateway.types import Call, Candidate

log = logging.getLogger("gateway.backends")

CREDENTIALS = frozenset({"upstream_auth", "upstream_billing"})


def failed(
    attempt: Attempt, error: GatewayError, number: int, switchboard: Switchboard, metrics: Metrics
) -> None:
    """``attempt``, the call's ``number``-th, ended in ``error``. What is no backend's doing is not told here."""
    own = isinstance(error, Overloaded) or (isinstance(error, RateLimited) and error.limit is not None)
    if own or not (isinstance(error, Upstream | RateLimited) or error.upstream_status is not None):
        return
    target, reason, status = attempt.turn.candidate.target, reason_of(error), error.upstream_status
    metrics.upstream_errors.labels(target.backend, _class(error)).inc()
    said = reason if status is None else f"{reason} (HTTP status {status})"
    tell(
        log,
        logging.WARNING if isinstance(error, Upstream | RateLimited) else logging.INFO,
        "upstream_error",
        f"{attempt.call.request_id} backend '{target.backend}' failed: {said}, attempt {number}",
        *_who(attempt.call, attempt.turn.candidate.model),
        *(target.backend, target.model, status, reason, number, attempt.facts["seconds"]),
    )
    if reason in CREDENTIALS:
        switchboard.refused(target.backend, target.model, reason)


def went_over(call: Call, before: Candidate, error: str, after: Candidate) -> None:
    """A call that ``before`` failed goes to ``after``."""
    tell(
        log,
        logging.WARNING,
        "failover",
        f"{call.request_id} goes from backend '{before.target.backend}' to '{after.target.backend}' after {error}",
        *_who(call, before.model),
        *(before.target.backend, error, after.model, after.target.backend),
    )


def _who(call: Call, model: str) -> tuple[Fact, ...]:
    return call.request_id, trace_id_of(call), call.principal.tenant, call.principal.key_id, model


def _class(error: GatewayError) -> str:
    if error.upstream_status is not None:
        return f"{error.upstream_status // 100}xx"
    if isinstance(error, UpstreamTimeout):
        return "timeout"
    return "unreachable" if isinstance(error, UpstreamUnavailable) else "broken"
