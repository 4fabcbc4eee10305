"""One call on its way through its candidates, until one has given the whole answer or none is left."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from types import TracebackType
from typing import Any

from gateway.errors import (
    ENGINE_SOON,
    BadRequest,
    ContentPolicy,
    ContextTooLong,
    GatewayError,
    Internal,
    Overloaded,
    RateLimited,
    TooManyAnswers,
    Upstream,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.fallback import report, retry
from gateway.fallback.attempt import Attempt, Turn
from gateway.fallback.breaker import SOON, Breaker, Caller, Trial
from gateway.fallback.continuation import (
    Continuing,
    Deviated,
    Opening,
    Sent,
    Splicing,
    can_be_one,
    continued,
)
from gateway.fallback.retry import RetryBudget
from gateway.fallback.switchboard import Switchboard
from gateway.observe.metrics import Metrics
from gateway.observe.outcome import UPSTREAM, outcome_of, reason_of
from gateway.policy.schema import EngineBackend
from gateway.types import Call, Candidate

LARGER = "larger_context"
UNASKED = frozenset({"shadow", "judge", "verifier"})
"""Purposes of calls that no caller made: however they end, they decide nothing about callers' own."""
OUTCOMES = UPSTREAM | {
    *("ok", "deviated", "client_left", "internal_error", "deadline_exceeded", "rate_limit_exceeded", "cut")
}
"""What the metrics tell apart. A server can make up codes without end; the receipt has them as they are."""


class Attempts:
    """What has been tried for one call, what is to be tried next, and what went wrong."""

    def __init__(self, call: Call, switchboard: Switchboard, metrics: Metrics) -> None:
        if not call.candidates:
            raise Internal("The request reached the backends without a candidate.")
        self._call = call
        self._switchboard = switchboard
        self._metrics = metrics
        self._began = time.perf_counter()
        self._unasked = call.purpose in UNASKED
        self._caller = Caller(call.principal.tenant, call.principal.key_id)
        self._made = 0
        self._facts: list[dict[str, Any]] = []
        self._skipped: list[Turn] = []
        first = call.candidates[0]
        self._first = first
        self._left = deque([Turn(first)])
        self._larger: list[Turn] = []
        for candidate in call.candidates[1:]:
            (self._larger if candidate.why == LARGER else self._left).append(Turn(candidate))
        self._errors: list[tuple[Turn, GatewayError]] = []
        self._cut: GatewayError | None = None
        """What broke the answer off that the caller has the beginning of."""
        self._failed: tuple[Candidate, BaseException] | None = None
        """Who was tried last, and what came of it."""
        self._recoveries = 0
        self._continued = 0
        self._asked_again = False
        elsewhere = len(self._left) > 1 or call.policy.backends[first.target.backend].continues
        self.sent = Sent() if elsewhere and can_be_one(call.request) else None
        """None where there is nowhere to go on with the answer."""

    def next(self) -> Attempt:
        """The next to be made, let through by its breaker. Raises the error that tells most, if none is left."""
        while self._left:
            turn = self._left.popleft()
            backend = turn.candidate.target.backend
            limits = self._call.policy.backends[backend].breaker
            trial = self._breaker(turn).admit(self._caller, limits, counts=not self._unasked)
            if trial is None:
                self._skipped.append(turn)
                continue
            if self._failed is not None:
                self._goes_over(*self._failed, turn.candidate)
            if not turn.failed:
                self._budget(turn).deposit(self._call.policy.models[turn.candidate.model].retry.budget)
            if self._cut is not None and self.sent is not None:
                return self._recovery(turn, trial, self.sent)
            self._call.candidate = turn.candidate
            # The first attempt is the call itself; a copy is made for whatever else is tried.
            call = replace(self._call, candidate=turn.candidate) if self._made else self._call
            return Attempt(turn, trial, call, Opening())
        raise self._last_word()

    def _goes_over(self, before: Candidate, error: BaseException, after: Candidate) -> None:
        self._failed = None
        if after is not before and not (isinstance(error, Overloaded) or is_own_limit(error)):
            reason = "deviated" if isinstance(error, Deviated) else reason_of(error)
            report.went_over(self._call, before, reason, after)

    def _recovery(self, turn: Turn, trial: Trial, sent: Sent) -> Attempt:
        self._recoveries += 1
        candidate = turn.candidate
        backend = self._call.policy.backends[candidate.target.backend]
        asked = None if turn.afresh else continued(self._call.request, sent, backend)
        if asked is None:
            call = replace(self._call, candidate=candidate)
            splicing = Splicing(sent.text, finished=sent.finished)
            attempt = Attempt(replace(turn, afresh=True), trial, call, splicing)
        else:
            request, space = asked
            call = replace(self._call, candidate=candidate, request=request)
            attempt = Attempt(turn, trial, call, Continuing(space), sent.tokens)
        attempt.facts["how"] = "afresh" if asked is None else "continued"
        return attempt

    def hears(self, attempt: Attempt) -> None:
        """The caller is about to be given something of ``attempt``."""
        if attempt.heard:
            return
        attempt.heard = True
        self._call.candidate = attempt.turn.candidate
        self._call.reply_headers["x-tollgate-model"] = attempt.turn.candidate.model
        if self._cut is not None:
            self._continued += 1

    def making(self, attempt: Attempt) -> _Making:
        """Around an attempt: what comes of it for the breaker, the metrics, the receipt and the bill."""
        return _Making(self, attempt)

    def begins(self, attempt: Attempt) -> None:
        attempt.call.sent = False
        self._count(+1)

    def ended(self, attempt: Attempt, error: BaseException | None) -> None:
        outcome = "ok"
        facts = attempt.facts
        facts["seconds"] = round(time.perf_counter() - attempt.began, 6)
        if error is None:
            attempt.trial.succeeded()
            if self._switchboard[facts["backend"]].refused:
                self._switchboard.accepted(facts["backend"], facts["model"])
        else:
            outcome = "deviated" if isinstance(error, Deviated) else outcome_of(error).code or "error"
            if isinstance(error, GatewayError):
                report.failed(attempt, error, self._made, self._switchboard, self._metrics)
            if isinstance(error, Upstream):
                attempt.trial.failed()
            elif isinstance(error, Overloaded | TooManyAnswers) or is_own_limit(error):
                attempt.admitted = facts["admitted"] = False
                self._count(-1)
        attempt.trial.let_go()
        facts["outcome"] = outcome
        self._facts.append(facts)
        if attempt.admitted:
            label = outcome if outcome in OUTCOMES else "rejected"
            self._metrics.attempts.labels(facts["backend"], label).inc()
        if (spending := attempt.spending(error)) is not None:
            self._call.spent.append(spending)
        if attempt.call.purse is not None:
            attempt.call.purse.release(attempt.call, spending)

    def _count(self, made: int) -> None:
        self._made += made
        if self._made > 1:
            self._call.reply_headers["x-tollgate-attempts"] = str(self._made)
        else:
            self._call.reply_headers.pop("x-tollgate-attempts", None)

    def note(self) -> None:
        """Tell the receipt."""
        # A cascade sends one call through here several times.
        before = self._call.receipt.notes.get("fallback", {})
        made = [*before.get("attempts", ()), *self._facts]
        self._call.receipt.note(
            "fallback", attempts=made, continued=before.get("continued", 0) + self._continued
        )
        if self._skipped:
            skipped = [turn.candidate.target.backend for turn in self._skipped]
            self._call.receipt.note("fallback", breaker_open=skipped)

    def after(self, attempt: Attempt, error: GatewayError | Deviated) -> float:
        """What is to be done about ``error``: seconds to wait before ``next``. Raises where there is nothing to do."""
        wait = 0.0
        self._failed = (attempt.turn.candidate, error)
        if attempt.heard:
            self._after_cut(attempt, error)
        elif self._cut is not None:
            self._after_recovery(attempt, error)
        elif isinstance(error, GatewayError):
            wait = self._after_failure(attempt, error)
        deadline = self._call.deadline
        if deadline is not None and time.perf_counter() + wait >= deadline:
            raise self._last_word()
        return wait

    def _after_failure(self, attempt: Attempt, error: GatewayError) -> float:
        """Nobody has heard anything of ``attempt``."""
        turn = attempt.turn
        match error:
            case ContentPolicy():
                raise error
            case ContextTooLong():
                self._errors.append((turn, error))
                others = [other for other in self._left if other.candidate.model != turn.candidate.model]
                self._left = deque((*self._larger, *others))
                self._larger = []
                return 0.0
            case Overloaded():
                self._errors.append((turn, error))
                return 0.0
            case RateLimited() if is_own_limit(error):
                self._errors.append((turn, error))  # another may be cheaper
                return 0.0
            case Upstream() | RateLimited():
                self._errors.append((turn, error))
                return self._before_retry(turn, error)
            case BadRequest() if self._may_suit_another(turn, error):
                self._errors.append((turn, error))
                return 0.0
        raise error

    def _may_suit_another(self, turn: Turn, error: BadRequest) -> bool:
        # What the caller's own model says of the request counts; a fallback's taste does not.
        if turn.candidate.model != self._first.model:
            return True
        return (
            error.status == 404 or error.code == "unsupported_parameter" or isinstance(error, TooManyAnswers)
        )

    def _before_retry(self, turn: Turn, error: GatewayError) -> float:
        """Put the same candidate first once more, where that makes sense, and return how long to wait for it."""
        rules = self._call.policy.models[turn.candidate.model].retry
        failed = turn.failed + 1
        if failed >= rules.attempts or not retry.can_succeed(error) or not self._is_usable(turn):
            return 0.0
        others = any(self._is_usable(other) for other in self._left)
        wait = retry.pause(error, rules.backoff, failed, others=others, left=self._time_left(turn.candidate))
        if wait is None or not self._budget(turn).take(rules.budget):
            return 0.0
        self._left.appendleft(replace(turn, failed=failed))
        return wait

    def _is_usable(self, turn: Turn) -> bool:
        return self._breaker(turn).wait(self._caller) == 0

    def _budget(self, turn: Turn) -> RetryBudget:
        line = self._switchboard[turn.candidate.target.backend]
        return line.aside if self._unasked else line.budget

    def _breaker(self, turn: Turn) -> Breaker:
        return self._switchboard.breaker(turn.candidate.target)

    def _time_left(self, candidate: Candidate) -> float:
        end = self._began + candidate.timeouts.total
        if self._call.deadline is not None:
            end = min(end, self._call.deadline)
        return end - time.perf_counter()

    def _after_cut(self, attempt: Attempt, error: GatewayError | Deviated) -> None:
        """The caller has the beginning of an answer, the end of which ``attempt`` owes."""
        if not isinstance(error, Upstream | RateLimited):
            raise error
        if self._cut is None:
            self._cut = error
        if self.sent is None or not self.sent.plain:
            raise self._last_word()
        self._once_more(attempt.turn, error)

    def _after_recovery(self, attempt: Attempt, error: GatewayError | Deviated) -> None:
        """``attempt`` was to go on with an answer, and did not."""
        match error:
            case ContentPolicy():
                raise error
            case BadRequest():
                if not attempt.turn.afresh:
                    self._left.appendleft(replace(attempt.turn, afresh=True))
            case Deviated() | Upstream() | RateLimited() | Overloaded():
                pass
            case _:
                raise error

    def _once_more(self, turn: Turn, error: GatewayError) -> None:
        """The only candidate there is gets one more chance, unless it has fallen silent or is known to be sick."""
        candidate = turn.candidate
        if self._asked_again or len(self._call.candidates) > 1 or isinstance(error, UpstreamTimeout):
            return
        if self._is_usable(turn) and self._budget(turn).take(
            self._call.policy.models[candidate.model].retry.budget
        ):
            self._asked_again = True
            self._left.append(Turn(candidate))

    def _last_word(self) -> GatewayError:
        """The error that tells the caller most."""
        if self._cut is not None:
            if self._recoveries:
                self._cut.code = "upstream_cut"
            return self._cut
        real = [(turn, error) for turn, error in self._errors if not isinstance(error, Overloaded)]
        if real and isinstance(real[0][1], ContextTooLong):
            # The model with the larger context can be asked again later; that the first is too small stays so.
            larger = [error for turn, error in self._errors if turn.candidate.why == LARGER]
            if larger and not isinstance(larger[-1], BadRequest):
                return larger[-1]
            if not larger and any(turn.candidate.why == LARGER for turn in self._skipped):
                return self._left_alone()
        if real:
            return [error for turn, error in real if turn.candidate is real[0][0].candidate][-1]
        if self._errors:
            return min((error for _, error in self._errors), key=lambda error: error.retry_after or 0.0)
        return self._left_alone()

    def _left_alone(self) -> UpstreamUnavailable:
        wait = min((self._wait(turn) for turn in self._skipped), default=SOON)
        return UpstreamUnavailable(
            f"Every backend of the model '{self._call.model}' that could answer has failed of late, and is left "
            f"alone for now. Try again in {max(wait, 1):.0f} s.",
            retry_after=wait,
        )

    def _wait(self, turn: Turn) -> float:
        wait = self._breaker(turn).wait(self._caller)
        backend = self._call.policy.backends[turn.candidate.target.backend]
        # An engine is asked how it is all the time, and is let through again as soon as it says so.
        return min(wait, ENGINE_SOON) if isinstance(backend, EngineBackend) else wait


def is_own_limit(error: BaseException) -> bool:
    """Whether the caller's own limits have no room for the attempt: it was not made."""
    return isinstance(error, RateLimited) and error.limit is not None


class _Making:
    """``Attempts.making`` as a class: a generator would cost each request three times as much."""

    __slots__ = ("_attempt", "_attempts")

    def __init__(self, attempts: Attempts, attempt: Attempt) -> None:
        self._attempts = attempts
        self._attempt = attempt

    def __enter__(self) -> None:
        self._attempts.begins(self._attempt)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._attempts.ended(self._attempt, error)
