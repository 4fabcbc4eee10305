"""How fast a backend has proved to be, and what that means for a request that wants to come in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from gateway.engine_figures import EngineFigures
from gateway.errors import Overloaded
from gateway.types import Demand

MEMORY = 30.0
"""Seconds without a finished request after which a speed is forgotten: it would keep out all who could correct it."""
PROBE = 2.0
"""Seconds without a finished request after which an idle backend is tried once, whatever was learned of it."""
ENGINE_MEMORY = 5.0
"""Seconds for which the engine's own figures are believed."""

_UNFORESEEN = 0.5
"""By what share single requests are off on average where nothing of them is foreseen (exponential lengths: by 0.74)."""
MAX_DELAY = 4.0
MAX_TIERS = 1000


class Average:
    """Exponentially weighted; the first few values count alike, so that it starts from none of them alone."""

    __slots__ = ("_count", "_share", "value")

    def __init__(self, share: float = 0.1) -> None:
        self._share = share
        self._count = 0
        self.value = 0.0

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, value: float) -> None:
        self._count += 1
        self.value += (value - self.value) * max(self._share, 1 / self._count)


class Speeds:
    """Measured on requests that came to their end, and forgotten when none has for a while."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._engine: EngineFigures | None = None
        self._engine_told = float("-inf")
        self._forget()

    def _forget(self) -> None:
        self._learned: float | None = None
        self._probed: float | None = None
        self._forget_latency()
        self.forget_throughput()

    def _forget_latency(self) -> None:
        self._first_token = Average()
        self._tokens = Average()
        self._token_time = Average()
        self._off = Average(0.02)
        """By what share the times that requests took were off what had been expected."""

    def forget_throughput(self) -> None:
        """The backend is another size now."""
        self._cost = Average()
        self._occupied = Average()
        self._delays: dict[str, tuple[Average, Average]] = {}
        """By tier: the waits that there were, and those that had been expected."""

    def _expire(self) -> None:
        if self._learned is not None and self._clock() - self._learned > MEMORY:
            self._forget()

    def learn(
        self, *, cost: int, share: float, seconds: float, first_token: float | None, completion: int
    ) -> None:
        """A request of ``cost`` tokens, as predicted, took ``share`` of the backend for ``seconds``. Its first token
        came after ``first_token`` seconds, or unseen with the rest of a whole answer of ``completion`` tokens.
        """
        self._expire()
        if self._probed is not None:
            # It was tried because what was learned under load was in doubt.
            self._probed = None
            self._forget_latency()
        self._learned = self._clock()
        self._cost.add(cost)
        self._occupied.add(seconds * share)
        if first_token is not None:
            self._first_token.add(first_token)
        if first_token is not None and completion > 1:
            self._tokens.add(completion - 1)
            self._token_time.add(seconds - first_token)
        elif first_token is None and completion > 0:
            self._tokens.add(completion)
            self._token_time.add(max(0.0, seconds - self._first_token.value))

    def may_probe(self) -> bool:
        """Whether a request that seems to have too little time is to find out how fast the idle backend is now.

        What was learned while it was overloaded would keep everyone out who could correct it.
        """
        now = self._clock()
        since = self._learned if self._probed is None else self._probed
        if since is None or now - since <= PROBE:
            return False
        self._probed = now
        return True

    def learn_service(self, expected: float, took: float) -> None:
        """What ``expected_service`` had said, and what it came to."""
        if expected > 0:
            self._off.add(abs(took - expected) / expected)

    @property
    def certainty(self) -> float:
        """0 to 1: how far one can go by the time that a single request is expected to take."""
        self._expire()
        return max(0.0, 1.0 - self._off.value / _UNFORESEEN) if self._off else 0.0

    def learn_wait(self, tier: str, expected: float, waited: float) -> None:
        """What ``expected_wait`` had said, and what it came to: it does not know who else will come, and pass."""
        if expected > 0 and (tier in self._delays or len(self._delays) < MAX_TIERS):
            was, thought = self._delays.setdefault(tier, (Average(0.02), Average(0.02)))
            was.add(waited)
            thought.add(expected)

    def delay(self, tier: str) -> float:
        """By what factor the waits of this tier have been longer than expected."""
        self._expire()
        if (known := self._delays.get(tier)) is None:
            return 1.0
        # Of their sums: a mean of ratios would go by the shortest waits, which are the least certain.
        was, thought = known
        return min(MAX_DELAY, was.value / thought.value)

    def tell(self, figures: EngineFigures | None) -> None:
        """The engine's own figures, or that they are not to be had."""
        self._engine = figures
        self._engine_told = self._clock()

    @property
    def engine(self) -> EngineFigures | None:
        if self._engine is not None and self._clock() - self._engine_told > ENGINE_MEMORY:
            self._engine = None
        return self._engine

    @property
    def throughput(self) -> float | None:
        """Tokens/s of the whole backend when it is full, prompts included.

        Each request contributes the tokens and the part of the backend that it took, for as long as it took it, so
        that a backend need not be full to be measured. Tokens are as predicted, as are those of the requests that
        wait: an estimate that is off by some factor cancels out.
        """
        self._expire()
        return self._cost.value / self._occupied.value if self._occupied.value > 0 else None

    @property
    def first_token(self) -> float | None:
        """Seconds from being sent on to the first token."""
        self._expire()
        return self._first_token.value if self._first_token else None

    @property
    def tokens_per_second(self) -> float | None:
        """Of one answer. The engine knows better what its load does to it."""
        engine = self.engine
        if engine is not None and engine.decode > 0 and engine.running > 0:
            return engine.decode / engine.running
        self._expire()
        return self._tokens.value / self._token_time.value if self._token_time.value > 0 else None

    def expected_wait(self, tokens: float) -> float | None:
        """Seconds until ``tokens`` of requests are through; None where nothing is known yet."""
        if tokens <= 0:
            return 0.0
        throughput = self.throughput
        return tokens / throughput if throughput else None

    def expected_service(self, demand: Demand) -> float | None:
        """Seconds from being sent on to the last token; None where nothing is known yet."""
        speed, first_token, engine = self.tokens_per_second, self.first_token, self.engine
        if speed is None and first_token is None:
            return None
        prefill = demand.prompt / engine.prefill if engine is not None and engine.prefill > 0 else 0.0
        return max(first_token or 0.0, prefill) + (demand.expected / speed if speed else 0.0)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a request has ahead of it, in seconds; what is not known counts as nothing."""

    wait: float
    service: float


def check_in_time(forecast: Forecast, *, max_wait: float, left: float | None, backend: str) -> None:
    """Raise ``Overloaded`` for a request that would wait longer than ``max_wait``, or end past the ``left`` seconds.

    ``retry_after`` is the time until the wait would fit, should nobody else come.
    """
    if left is not None and left <= 0:
        raise Overloaded(
            f"The time for this request had passed before it reached backend '{backend}'. Allow it longer.",
            code="deadline_exceeded",
            retry_after=max(1.0, forecast.wait),
        )
    if left is not None and forecast.wait + forecast.service > left:
        room = max(0.0, left - forecast.service)
        raise Overloaded(
            f"Backend '{backend}' could not finish this request in the {left:.3g} s it has left: it would "
            f"wait about {forecast.wait:.3g} s and take about {forecast.service:.3g} s. Try again later, with a "
            "longer deadline, or with a smaller max_tokens.",
            code="deadline_exceeded",
            retry_after=max(1.0, forecast.wait - room),
        )
    if forecast.wait > max_wait:
        raise Overloaded(
            f"Backend '{backend}' is busy: this request would wait about {forecast.wait:.3g} s, and your tier waits "
            f"{max_wait:g} s at most. Try again later.",
            code="queue_timeout",
            retry_after=max(1.0, forecast.wait - max_wait),
        )
