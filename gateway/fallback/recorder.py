"""What each attempt leaves behind: the breaker's counts, metrics, log lines, a line of the receipt, and the bill."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from gateway.errors import (
    GatewayError,
    Overloaded,
    RateLimited,
    TooManyAnswers,
    Upstream,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.fallback.attempt import Attempt
from gateway.fallback.continuation import AnswerDiverged
from gateway.fallback.health import HealthRegistry
from gateway.fallback.hop import PlannedAttempt
from gateway.observe.events import Fact, log_event
from gateway.observe.metrics import Metrics
from gateway.observe.outcome import UPSTREAM, outcome_of, reason_of
from gateway.observe.telemetry.telemetry import Telemetry
from gateway.observe.tracing import trace_id_of
from gateway.types import Call, Candidate

log = logging.getLogger("gateway.backends")

ATTEMPTS = "x-tollgate-attempts"
"""The header with their number, where there were several."""
CREDENTIALS = frozenset({"upstream_auth", "upstream_billing"})
OUTCOMES = UPSTREAM | {
    *("ok", "deviated", "client_left", "internal_error", "deadline_exceeded", "rate_limit_exceeded", "cut")
}
"""The metrics' label. Servers can make up any number of codes; the receipt has them unchanged."""


class AttemptRecorder:
    """Records the attempts of one call. ``telemetry`` is None where the policy has none."""

    __slots__ = ("_call", "_facts", "_health", "_made", "_metrics", "_telemetry")

    def __init__(
        self, call: Call, health: HealthRegistry, metrics: Metrics, telemetry: Telemetry | None
    ) -> None:
        self._call = call
        self._telemetry = telemetry
        self._health = health
        self._metrics = metrics
        self._made = 0
        self._facts: list[dict[str, Any]] = []

    def started(self, attempt: Attempt) -> None:
        attempt.call.sent = False
        self._made += 1
        if self._made > 1:
            self._call.reply_headers[ATTEMPTS] = str(self._made)

    def ended(self, attempt: Attempt, error: BaseException | None) -> None:
        """``error`` is None for an attempt that was completed."""
        facts, now, arrived = attempt.facts, time.perf_counter(), attempt.call.started
        facts["began"] = round(attempt.began - arrived, 6)
        if attempt.call.sent:
            facts["sent"] = round(attempt.call.sent_at - arrived, 6)
        facts["seconds"] = round(now - attempt.began, 6)
        outcome = "ok"
        if error is None:
            attempt.permit.succeeded()
            if attempt.planned.hop.health.credentials_refused:
                self._health.credentials_accepted(facts["backend"], facts["model"])
        else:
            outcome = "deviated" if isinstance(error, AnswerDiverged) else outcome_of(error).code or "error"
            self._failed(attempt, error)
            attempt.permit.release()
        facts["outcome"] = outcome
        self._facts.append(facts)
        label = outcome if outcome in OUTCOMES else "rejected"
        if attempt.admitted:
            self._metrics.attempts[facts["backend"], label].pending += 1
        if (usage := attempt.upstream_usage(error)) is not None:
            self._call.upstream_usage.append(usage)
        if self._telemetry is not None:
            self._telemetry.attempted(attempt.call, facts, None if error is None else label, usage)
        if attempt.call.allowance is not None:
            attempt.call.allowance.release(attempt.call, usage)

    def failover(self, before: Candidate, error: BaseException, after: Candidate) -> None:
        """After ``error`` at ``before`` the call goes to ``after``."""
        if after is before or isinstance(error, Overloaded) or is_own_limit(error):
            return
        call, reason = self._call, "deviated" if isinstance(error, AnswerDiverged) else reason_of(error)
        backends = before.target.backend, after.target.backend
        log_event(
            log,
            logging.WARNING,
            "failover",
            f"{call.request_id} goes from backend '{backends[0]}' to '{backends[1]}' after {reason}",
            *_who(call, before.model),
            *(backends[0], reason, after.model, backends[1]),
        )

    def write_receipt(self, skipped: Sequence[PlannedAttempt], continued: int) -> None:
        """``skipped`` are those with an open breaker, ``continued`` how many attempts continued the answer."""
        notes, made = self._call.receipt.noted, self._facts
        if (before := notes.get("fallback")) is None:
            notes["fallback"] = {"attempts": made, "continued": continued}
        else:  # a cascade sends one call through here several times
            before["attempts"] = [*before.get("attempts", ()), *made]
            before["continued"] = before.get("continued", 0) + continued
        if skipped:
            names = [planned.candidate.target.backend for planned in skipped]
            self._call.receipt.note("fallback", breaker_open=names)

    def _failed(self, attempt: Attempt, error: BaseException) -> None:
        own_limit = isinstance(error, Overloaded) or is_own_limit(error)
        if isinstance(error, Upstream):
            attempt.permit.failed(_incident(attempt, error))
            attempt.facts["fault"] = reason_of(error)
        elif own_limit or isinstance(error, TooManyAnswers):
            attempt.admitted = attempt.facts["admitted"] = False
        if isinstance(error, GatewayError) and not own_limit:
            self._log(attempt, error)
        if not attempt.admitted:
            self._made -= 1
            if self._made > 1:
                self._call.reply_headers[ATTEMPTS] = str(self._made)
            else:
                self._call.reply_headers.pop(ATTEMPTS, None)

    def _log(self, attempt: Attempt, error: GatewayError) -> None:
        """Log and count what a backend did wrong; other errors are no backend's doing."""
        status = error.upstream_status
        if not isinstance(error, Upstream | RateLimited) and status is None:
            return
        target, reason = attempt.planned.candidate.target, reason_of(error)
        self._metrics.upstream_errors[target.backend, _class(error)].inc()
        with_status = reason if status is None else f"{reason} (HTTP status {status})"
        log_event(
            log,
            logging.WARNING if isinstance(error, Upstream | RateLimited) else logging.INFO,
            "upstream_error",
            f"{attempt.call.request_id} backend '{target.backend}' failed: {with_status}, attempt {self._made}",
            *_who(attempt.call, attempt.planned.candidate.model),
            *(target.backend, target.model, status, reason, self._made, attempt.facts["seconds"]),
        )
        if reason in CREDENTIALS:
            self._health.credentials_refused(target.backend, target.model, reason)


def _incident(attempt: Attempt, error: Upstream) -> str | None:
    """What ended other requests too. An engine's process that was killed tells none; its connections end together."""
    hop = attempt.planned.hop
    if not (hop.is_engine and error.severed and error.incident is None):
        return error.incident
    return hop.health.severed.incident(attempt.call.sent_at if attempt.call.sent else attempt.began)


def is_own_limit(error: BaseException) -> bool:
    """Whether the attempt was not made, as it exceeds the caller's own limits."""
    return isinstance(error, RateLimited) and error.limit is not None


def _who(call: Call, model: str) -> tuple[Fact, ...]:
    return call.request_id, trace_id_of(call), call.principal.tenant, call.principal.key_id, model


def _class(error: GatewayError) -> str:
    if error.upstream_status is not None:
        return f"{error.upstream_status // 100}xx"
    if isinstance(error, UpstreamTimeout):
        return "timeout"
    return "unreachable" if isinstance(error, UpstreamUnavailable) else "broken"
