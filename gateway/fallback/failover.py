"""Which candidate of a call is tried next, and what a failed attempt leads to.

Nothing of the answer has been delivered yet, or what has is held back and discarded (``_after_failure``):

    its provider's content policy, a bad request    the error
    the context is too short                        models with a larger one, then other models
    the queue is full, the caller's own limits      the next candidate
    its server failed, or is rate limited           a retry after a delay (``retry``), or the next candidate
    rejected by a fallback; unknown; unsupported    the next candidate

This attempt broke off a delivered answer (``_after_interruption``):

    its server failed, or is rate limited           the next candidate continues; an only one may once more
    anything else, or more than text was delivered  the error

It was to continue the answer of another, and has delivered nothing (``_after_recovery``):

    the continuation was rejected                   the same candidate, asked for the whole answer
    any other failure, or another answer            the next candidate

When no candidate or no time is left, the caller gets the error that says most (``_final_error``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from gateway.errors import (
    ENGINE_SOON,
    BadRequest,
    ContentPolicy,
    ContextTooLong,
    GatewayError,
    Internal,
    Overloaded,
    RateLimited,
    Upstream,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.fallback import retry
from gateway.fallback.attempt import Attempt
from gateway.fallback.circuit_breaker import PROBE_RETRY_AFTER, Caller, Permit
from gateway.fallback.continuation import (
    AnswerDiverged,
    ContinuationFilter,
    OpeningFilter,
    ReplayFilter,
    SentAnswer,
    continuation_request,
)
from gateway.fallback.hop import Hops, PlannedAttempt
from gateway.fallback.recorder import AttemptRecorder, is_own_limit
from gateway.fallback.retry import RetryBudget
from gateway.observe.metrics import Metrics
from gateway.observe.telemetry.telemetry import Telemetry
from gateway.types import Call, Candidate, Chunk

LARGER = "larger_context"
OWN = ("primary", "downgrade", LARGER)
"""Why the first candidate is one, unless it only stands in for another."""
UNSOLICITED = frozenset({"shadow", "judge", "verifier", "evaluation"})
"""Purposes of calls that no caller made: however they end, they decide nothing about callers' own."""


Deferred = Callable[[Call, GatewayError], GatewayError | None]
"""Takes the error that a call would end with, before its caller has anything; ``Router.deferred``."""


class Failover:
    """One call on its way through its candidates."""

    answered = False
    _begun = False
    """Whether the caller has been given anything."""
    _interruption: GatewayError | None = None
    """What broke off the answer of which the caller has the beginning."""
    _last_failure: tuple[Candidate, BaseException] | None = None
    _delay = 0.0
    _attempts = 0
    _recoveries = 0
    _continued = 0
    _asked_again = False
    _larger: tuple[PlannedAttempt, ...] = ()
    _skipped: tuple[PlannedAttempt, ...] = ()
    """Those whose breaker is open."""
    _errors: tuple[tuple[PlannedAttempt, GatewayError], ...] = ()
    _sent: SentAnswer | None = None
    """What the caller has of a stream; None where nobody could continue it."""

    def __init__(
        self,
        call: Call,
        hops: Hops,
        metrics: Metrics,
        telemetry: Telemetry | None = None,
        deferred: Deferred | None = None,
    ) -> None:
        if not call.candidates:
            raise Internal("The request reached the backends without a candidate.")
        self._call = call
        self._deferred = deferred
        self._recorder = AttemptRecorder(call, hops.health, metrics, telemetry)
        self._began = time.perf_counter()
        self._unsolicited = call.purpose in UNSOLICITED
        self._caller = Caller(call.principal.tenant, call.principal.key_id)
        first = hops.first(call.candidates[0])
        self._left = [first]
        if len(call.candidates) > 1:
            others = [hops.first(candidate) for candidate in call.candidates[1:]]
            self._left += [planned for planned in others if planned.candidate.why != LARGER]
            self._larger = tuple(planned for planned in others if planned.candidate.why == LARGER)
        if call.request.stream:
            elsewhere = len(self._left) > 1 or first.hop.backend.continues
            self._sent = SentAnswer() if elsewhere and call.request.choices == 1 else None

    def next_attempt(self) -> Attempt:
        """The next attempt, let through by its breaker. Raises the error for the caller if none is left."""
        while self._left:
            planned = self._left.pop(0)
            hop = planned.hop
            candidate = hop.candidate
            permit = hop.breaker.acquire(self._caller, hop.backend.breaker, counts=not self._unsolicited)
            if permit is None:
                self._skipped = (*self._skipped, planned)
                continue
            if self._last_failure is not None:
                self._recorder.failover(*self._last_failure, candidate)
                self._last_failure = None
            if not planned.failures:
                self._budget(planned).deposit(hop.retry.budget)
            self._attempts += 1
            if self._interruption is not None and self._sent is not None:
                return self._recovery(planned, permit, self._sent)
            self._call.candidate = candidate
            # The first attempt is the call itself; a copy is made for whatever else is tried.
            call = replace(self._call, candidate=candidate) if self._attempts > 1 else self._call
            return Attempt(planned, permit, call, OpeningFilter(), self._sent)
        raise self._final_error()

    def started(self, attempt: Attempt) -> None:
        self._recorder.started(attempt)

    def ended(self, attempt: Attempt, error: BaseException | None) -> bool:
        """``attempt`` is over. Whether ``error`` is one that another attempt may mend; raises what the caller is to be
        given where none is left."""
        self._recorder.ended(attempt, error)
        if isinstance(error, GatewayError | AnswerDiverged):
            self._failed(attempt, error)
            return True
        self.answered = error is None
        return False

    def filtered(self, attempt: Attempt, chunk: Chunk) -> Iterator[Chunk]:
        """What of ``chunk``, and of those held back before it, goes to the caller now. Raises ``AnswerDiverged``."""
        if chunk.comment is not None:
            yield chunk
            return
        attempt.count(chunk)
        for ready in attempt.filter.feed(chunk):
            if attempt.sent is not None:
                attempt.sent.add(ready)
            if attempt.filter.passthrough:
                self.delivers(attempt)
            yield ready
        if attempt.filter.passthrough:
            self.delivers(attempt)

    def opens(self, attempt: Attempt, chunk: Chunk) -> bool:
        """Whether ``chunk`` is the first of a first attempt, and has content: nothing is held back then."""
        opening = attempt.filter
        if chunk.comment is not None or opening.__class__ is not OpeningFilter or not opening.opens(chunk):
            return False
        self.delivers(attempt)
        return True

    def delivers(self, attempt: Attempt) -> None:
        """The caller is about to be given something of ``attempt``."""
        if attempt.delivered:
            return
        attempt.delivered = self._begun = True
        attempt.facts["first_chunk"] = round(time.perf_counter() - self._call.started, 6)
        self._call.candidate = attempt.planned.candidate
        self._call.reply_headers["x-tollgate-model"] = attempt.planned.candidate.model
        if self._interruption is not None:
            self._continued += 1

    def instead(self, error: GatewayError) -> GatewayError | None:
        """What the caller gets in place of ``error``, where something that is out of use might have answered."""
        return self._deferred(self._call, error) if self._deferred is not None and not self._begun else None

    async def pause(self) -> None:
        """Wait as long as the next attempt has to."""
        if self._delay:
            await asyncio.sleep(self._delay)

    def end(self) -> None:
        """Write the receipt, and let go of errors: their tracebacks lead to frames that hold this object."""
        self._recorder.write_receipt(self._skipped, self._continued)
        self._errors = ()
        self._interruption = self._last_failure = None

    def _failed(self, attempt: Attempt, error: GatewayError | AnswerDiverged) -> None:
        """Plan what follows ``error``. Raises what the caller is to be given where nothing does."""
        self._delay = 0.0
        self._last_failure = (attempt.planned.candidate, error)
        if attempt.delivered and not self._discarded(attempt, error):
            self._after_interruption(attempt, error)
        elif self._interruption is not None:
            self._after_recovery(attempt, error)
        elif isinstance(error, GatewayError):
            self._after_failure(attempt.planned, error)
        deadline = self._call.deadline
        if deadline is not None and time.perf_counter() + self._delay >= deadline:
            raise self._final_error()

    def _discarded(self, attempt: Attempt, error: GatewayError | AnswerDiverged) -> bool:
        """Whether all that ``attempt`` gave is forgotten, as it was held back from the caller: by a guard, or by a
        cascade that has yet to judge it."""
        discard = self._call.discard
        if discard is None or not isinstance(error, Upstream | RateLimited) or not discard():
            return False
        attempt.facts["discarded"] = True
        self._begun = False
        self._call.reply_headers.pop("x-tollgate-model", None)
        if self._sent is not None:
            self._sent = SentAnswer()
        return True

    def _recovery(self, planned: PlannedAttempt, permit: Permit, sent: SentAnswer) -> Attempt:
        """An attempt to go on with the answer that was broken off."""
        self._recoveries += 1
        candidate = planned.candidate
        backend = planned.hop.backend
        asked = None if planned.restart else continuation_request(self._call.request, sent, backend)
        if asked is None:
            call = replace(self._call, candidate=candidate)
            replay = ReplayFilter(sent.text, finished=sent.finished)
            attempt = Attempt(replace(planned, restart=True), permit, call, replay, sent)
            attempt.facts["how"] = "afresh"
        else:
            request, space = asked
            call = replace(self._call, candidate=candidate, request=request)
            continuation = ContinuationFilter(space)
            attempt = Attempt(planned, permit, call, continuation, sent, prefix_tokens=sent.tokens)
            attempt.facts["how"] = "continued"
        return attempt

    def _after_failure(self, planned: PlannedAttempt, error: GatewayError) -> None:
        """The caller has nothing yet."""
        self._errors = (*self._errors, (planned, error))
        match error:
            case ContextTooLong():
                others = [other for other in self._left if other.candidate.model != planned.candidate.model]
                self._left = [*self._larger, *others]
                self._larger = ()
            case Upstream() | RateLimited() if not is_own_limit(error):
                self._plan_retry(planned, error)
            case Overloaded() | RateLimited():
                pass
            case BadRequest() if self._may_suit_another(planned, error):
                pass
            case _:
                raise error

    def _may_suit_another(self, planned: PlannedAttempt, error: BadRequest) -> bool:
        # A rejection by the model that was asked for is the answer; one by a fallback is not.
        return planned.candidate.model != self._own_model() or error.may_suit_another

    def _own_model(self) -> str | None:
        """The model that was asked for, or was chosen in its place for good; None where only fallbacks can be used."""
        first, *others = self._call.candidates
        if first.why == "spill_over":
            return next((one.model for one in others if one.why in OWN), None)
        return first.model if first.why in OWN else None

    def _plan_retry(self, planned: PlannedAttempt, error: GatewayError) -> None:
        """Try the same candidate again after a delay, where the retry rules allow it."""
        rules = planned.hop.retry
        failures = planned.failures + 1
        if self._call.purpose == "evaluation":  # another answer is as good to judge
            return
        if failures >= rules.attempts or not retry.is_retryable(error) or not self._is_usable(planned):
            return
        usable = [other for other in self._left if self._is_usable(other)]
        replica = planned.candidate.target.backend.rpartition("@")[0]
        if replica and any(other.candidate.target.backend.startswith(f"{replica}@") for other in usable):
            return  # it is another one's turn, at once
        others = bool(usable)
        time_left = self._time_left(planned.candidate)
        delay = retry.retry_delay(error, rules.backoff, failures, others=others, left=time_left)
        if delay is None or not self._budget(planned).take(rules.budget):
            return
        self._left.insert(0, replace(planned, failures=failures))
        self._delay = delay

    def _after_interruption(self, attempt: Attempt, error: GatewayError | AnswerDiverged) -> None:
        """``attempt`` broke off an answer of which the caller has the beginning."""
        if not isinstance(error, Upstream | RateLimited):
            raise error
        if self._interruption is None:
            self._interruption = error
        if self._sent is None or not self._sent.plain:
            raise self._final_error()
        self._plan_second_chance(attempt.planned, error)

    def _plan_second_chance(self, planned: PlannedAttempt, error: GatewayError) -> None:
        """An only candidate may go on with its own answer, once, unless it fell silent or its breaker is open."""
        if self._asked_again or len(self._call.candidates) > 1 or isinstance(error, UpstreamTimeout):
            return
        budget = planned.hop.retry.budget
        if self._is_usable(planned) and self._budget(planned).take(budget):
            self._asked_again = True
            self._left.append(PlannedAttempt(planned.hop))

    def _after_recovery(self, attempt: Attempt, error: GatewayError | AnswerDiverged) -> None:
        """``attempt`` was to go on with an answer, and has given nothing of it."""
        match error:
            case ContentPolicy():
                raise error
            case BadRequest():
                if not attempt.planned.restart:
                    self._left.insert(0, replace(attempt.planned, restart=True))
            case AnswerDiverged() | Upstream() | RateLimited() | Overloaded():
                pass
            case _:
                raise error

    def _is_usable(self, planned: PlannedAttempt) -> bool:
        return planned.hop.breaker.wait(self._caller) == 0

    def _budget(self, planned: PlannedAttempt) -> RetryBudget:
        health = planned.hop.health
        return health.unsolicited_retries if self._unsolicited else health.retries

    def _time_left(self, candidate: Candidate) -> float:
        end = self._began + candidate.timeouts.total
        if self._call.deadline is not None:
            end = min(end, self._call.deadline)
        return end - time.perf_counter()

    def _final_error(self) -> GatewayError:
        """The error that says most to the caller."""
        if self._interruption is not None:
            if self._recoveries:
                self._interruption.code = "upstream_cut"
            return self._interruption
        real = [(planned, error) for planned, error in self._errors if not isinstance(error, Overloaded)]
        if real and (waits := self._own_wait()) is not None:
            return waits
        if real and isinstance(real[0][1], ContextTooLong):
            # The model with the larger context may answer later; that the first is too small stays so.
            larger = [error for planned, error in self._errors if planned.candidate.why == LARGER]
            if larger and not isinstance(larger[-1], BadRequest):
                return larger[-1]
            if not larger and any(planned.candidate.why == LARGER for planned in self._skipped):
                return self._all_skipped()
        if real:
            return [error for planned, error in real if planned.candidate is real[0][0].candidate][-1]
        if self._errors:
            return min((error for _, error in self._errors), key=lambda error: error.retry_after or 0.0)
        return self._all_skipped()

    def _own_wait(self) -> GatewayError | None:
        """Why the model that was asked for has not been asked, though others in its place have failed."""
        own = self._own_model()
        errors = [error for planned, error in self._errors if planned.candidate.model == own]
        if any(not isinstance(error, Overloaded) for error in errors):
            return None
        if any(planned.candidate.model == own for planned in self._skipped):
            return self._all_skipped()
        return errors[0] if errors else None

    def _all_skipped(self) -> UpstreamUnavailable:
        wait = min((self._wait(planned) for planned in self._skipped), default=PROBE_RETRY_AFTER)
        return UpstreamUnavailable(
            f"Every backend of the model '{self._call.model}' that could answer has failed recently and is not asked "
            f"for now. Try again in {max(wait, 1):.0f} s.",
            retry_after=wait,
        )

    def _wait(self, planned: PlannedAttempt) -> float:
        wait = planned.hop.breaker.wait(self._caller)
        # An engine is polled, and its breaker closes as soon as it answers.
        return min(wait, ENGINE_SOON) if planned.hop.is_engine else wait
