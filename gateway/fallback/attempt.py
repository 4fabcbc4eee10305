"""One try of one candidate."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from gateway.errors import (
    BadRequest,
    DeadlineExceeded,
    GatewayError,
    Overloaded,
    RateLimited,
    Upstream,
    UpstreamTimeout,
)
from gateway.fallback.breaker import Trial
from gateway.fallback.continuation import Deviated, Joint, joined_usage
from gateway.metering.estimate import Estimate, answers_wanted, guess, unheard
from gateway.metering.tally import Tally
from gateway.types import Call, Candidate, Chunk, Purpose, Spending, Usage


@dataclass(frozen=True, slots=True)
class Turn:
    """A candidate, and how often it has failed this call before; ``afresh``, it is not asked to go on."""

    candidate: Candidate
    failed: int = 0
    afresh: bool = False


class Attempt:
    """One try of one candidate."""

    __slots__ = (
        "admitted",
        "before",
        "began",
        "call",
        "facts",
        "heard",
        "joint",
        "tally",
        "trial",
        "turn",
    )

    def __init__(self, turn: Turn, trial: Trial, call: Call, joint: Joint, before: int = 0) -> None:
        self.turn = turn
        self.trial = trial
        self.call = call
        self.joint = joint
        self.before = before
        """Tokens of the answer that stand in its prompt, as it goes on from them."""
        self.admitted = True
        """Our own queue let it through to the backend."""
        self.heard = False
        """The caller has something of it."""
        self.tally = Tally()
        self.began = time.perf_counter()
        self.facts: dict[str, Any] = {
            "backend": turn.candidate.target.backend,
            "model": turn.candidate.target.model,
        }
        if turn.candidate.why != "primary":
            self.facts["why"] = turn.candidate.why

    def take(self, chunk: Chunk) -> None:
        """Count it; its usage becomes the whole answer's."""
        self.tally.add(chunk)
        if chunk.usage is not None and self.before:
            chunk.usage = joined_usage(chunk.usage, self.before)

    def spending(self, error: BaseException | None) -> Spending | None:
        """What it used, ``error`` having ended it (None: a good end). None where it never got to a model.

        What left for a server is never free: where nothing came back, it is taken for what such a request usually
        takes. One that is not streamed goes on at many providers when its caller has gone, to whatever length: by
        leaving early, or with a short deadline, nobody makes it cheaper than it may have become.
        """
        told = self.tally.told if error is None else None
        found = (told, False) if told is not None else self._estimated(error)
        if found is None:
            return None
        candidate = self.turn.candidate
        return Spending(candidate.target, *found, self._purpose(error), candidate.model)

    def _estimated(self, error: BaseException | None) -> tuple[Usage, bool] | None:
        call, tally = self.call, self.tally
        if isinstance(error, GatewayError):
            for chunk in error.unread:
                tally.add(chunk)
        heard = tally.usage is not None or tally.counted > 0
        if not heard and (not call.sent or declined(error)) and error is not None:
            return None
        demand = call.demand or guess(call.request)
        left = isinstance(error, DeadlineExceeded) or not isinstance(error, GatewayError | Deviated)
        unseen = unheard(call, demand) if left and not call.request.stream else demand.expected
        if call.cap is not None:
            unseen = min(unseen, call.cap * answers_wanted(call.request))
        thoughts = min(demand.thoughts, unheard(call, demand)) if isinstance(demand, Estimate) else 0
        return tally.of(demand.prompt + self.before, unseen, whole=error is None, thoughts=thoughts)

    def _purpose(self, error: BaseException | None) -> Purpose:
        asked = self.call.purpose
        failed = error is not None and isinstance(error, GatewayError | Deviated)
        return "attempt" if failed and asked in ("answer", "step") else asked


def declined(error: BaseException | None) -> bool:
    """Turned down by its server, or by our own queue, before a model had seen it: that costs nothing."""
    if isinstance(error, Overloaded | BadRequest | RateLimited):
        return True
    refused = isinstance(error, Upstream) and error.upstream_status is not None
    return refused and not isinstance(error, UpstreamTimeout)
