"""How fast a backend is, as measured on its requests: throughput, time to first token, tokens per second."""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.engine_load import EngineLoad
from gateway.types import TokenEstimate

FORGET_AFTER = 30.0
"""Seconds without a finished request after which all is forgotten: it could refuse every request that corrects it."""
PROBE_AFTER = 2.0
"""Seconds without a finished request after which an idle backend is tried once, whatever was measured."""
ENGINE_FIGURES_TTL = 5.0
"""Seconds for which an engine's own figures are used."""

_ERROR_WITHOUT_FORECAST = 0.5
"""The mean relative error at which single forecasts are worth nothing (0.74 for exponential lengths)."""
MAX_WAIT_FACTOR = 4.0
MAX_TIERS = 1000


class Average:
    """Exponentially weighted; the first few values count alike, so that it does not start from one of them."""

    __slots__ = ("_count", "_share", "_weight", "value")

    def __init__(self, share: float = 0.1) -> None:
        self._share = share
        self._count = 0
        """As long as each value weighs more than ``share``."""
        self._weight = 1.0
        self.value = 0.0

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, value: float) -> None:
        if self._weight > self._share:
            self._count += 1
            self._weight = max(self._share, 1 / self._count)
        self.value += (value - self.value) * self._weight


class Ratio:
    """Of two such averages, whose values come together."""

    __slots__ = ("_count", "_share", "_weight", "over", "under")

    def __init__(self, share: float = 0.1) -> None:
        self._share = share
        self._count = 0
        self._weight = 1.0
        self.over = 0.0
        self.under = 0.0

    def add(self, over: float, under: float) -> None:
        weight = self._weight
        if weight > self._share:
            self._count += 1
            self._weight = weight = max(self._share, 1 / self._count)
        self.over += (over - self.over) * weight
        self.under += (under - self.under) * weight


class SpeedEstimator:
    """Measured on completed requests, and forgotten when none has been for a while."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._engine: EngineLoad | None = None
        self._engine_updated = float("-inf")
        self._reset()

    def _reset(self) -> None:
        self._observed: float | None = None
        self._probed: float | None = None
        self._reset_latency()
        self.reset_throughput()

    def _reset_latency(self) -> None:
        self._first_token = Average()
        self._decode = Ratio()
        """Tokens of answers, and the seconds from the first to the last."""
        self._relative_error = Average(0.02)
        """Of expected service times."""

    def reset_throughput(self) -> None:
        """The backend's limits have changed."""
        self._throughput = Ratio()
        """Tokens of requests, and their seconds times their shares of the backend."""
        self._waits: dict[str, Ratio] = {}
        """By tier: waits as they were, and as they were expected."""

    def _expire(self) -> None:
        if self._observed is not None and self._clock() - self._observed > FORGET_AFTER:
            self._reset()

    def observe(
        self, *, tokens: int, share: float, seconds: float, first_token: float | None, completion: int
    ) -> None:
        """A request of ``tokens`` tokens, as predicted, took ``share`` of the backend for ``seconds``. Its first token
        came after ``first_token`` seconds; None if its ``completion`` tokens came in one piece.
        """
        now = self._clock()
        if self._observed is not None and now - self._observed > FORGET_AFTER:
            self._reset()
        if self._probed is not None:
            # It was a probe, as what was measured under load may no longer hold.
            self._probed = None
            self._reset_latency()
        self._observed = now
        self._throughput.add(tokens, seconds * share)
        if first_token is not None:
            self._first_token.add(first_token)
            if completion > 1:
                self._decode.add(completion - 1, seconds - first_token)
        elif completion > 0:
            self._decode.add(completion, max(0.0, seconds - self._first_token.value))

    def may_probe(self) -> bool:
        """Whether a request that seems to have too little time may probe how fast the idle backend is now.

        What was measured under overload would refuse every request that could correct it.
        """
        now = self._clock()
        since = self._observed if self._probed is None else self._probed
        if since is None or now - since <= PROBE_AFTER:
            return False
        self._probed = now
        return True

    def observe_service(self, expected: float, took: float) -> None:
        """``expected_service``, in seconds, and what it ``took``."""
        if expected > 0:
            self._relative_error.add(abs(took - expected) / expected)

    @property
    def certainty(self) -> float:
        """0 to 1: how reliable the expected service time of a single request is."""
        self._expire()
        return (
            max(0.0, 1.0 - self._relative_error.value / _ERROR_WITHOUT_FORECAST)
            if self._relative_error
            else 0.0
        )

    def observe_wait(self, tier: str, expected: float, waited: float) -> None:
        """``expected_wait`` and the wait, in seconds. Requests that arrive later and overtake make it longer."""
        if expected > 0 and (tier in self._waits or len(self._waits) < MAX_TIERS):
            self._waits.setdefault(tier, Ratio(0.02)).add(waited, expected)

    def wait_factor(self, tier: str) -> float:
        """By what factor waits of this tier have been longer than expected."""
        self._expire()
        if (known := self._waits.get(tier)) is None:
            return 1.0
        # The ratio of the means: a mean of ratios would weigh the shortest waits most, which are the least certain.
        return min(MAX_WAIT_FACTOR, known.over / known.under)

    def update_engine(self, figures: EngineLoad | None) -> None:
        """The engine's own figures; None where it does not answer."""
        self._engine = figures
        self._engine_updated = self._clock()

    @property
    def engine(self) -> EngineLoad | None:
        if self._engine is not None and self._clock() - self._engine_updated > ENGINE_FIGURES_TTL:
            self._engine = None
        return self._engine

    @property
    def usual_tokens(self) -> int:
        """Of a request, prompt and answer, as predicted."""
        return int(self._throughput.over) or 1

    @property
    def throughput(self) -> float | None:
        """Tokens/s of the whole backend when it is full, prompts included.

        Each request contributes its tokens, and its share of the backend times its seconds, so that a backend need
        not be full to be measured. Tokens are as predicted, like those of waiting requests: a constant error of the
        estimate cancels out.
        """
        self._expire()
        known = self._throughput
        return known.over / known.under if known.under > 0 else None

    @property
    def first_token(self) -> float | None:
        """Seconds from dispatch to the first token."""
        self._expire()
        return self._first_token.value if self._first_token else None

    @property
    def tokens_per_second(self) -> float | None:
        """Of one answer. An engine's own figure is preferred, as it follows its load."""
        self._expire()
        return self._decode_speed(self.engine)

    def _decode_speed(self, engine: EngineLoad | None) -> float | None:
        if engine is not None and engine.decode > 0 and engine.running > 0:
            return engine.decode / engine.running
        known = self._decode
        return known.over / known.under if known.under > 0 else None

    def expected_wait(self, tokens: float) -> float | None:
        """Seconds until ``tokens`` have been served; None where nothing is known yet."""
        if tokens <= 0:
            return 0.0
        throughput = self.throughput
        return tokens / throughput if throughput else None

    def expected_service(self, estimate: TokenEstimate) -> float | None:
        """Seconds from dispatch to the last token; None where nothing is known yet."""
        if self._observed is not None and self._clock() - self._observed > FORGET_AFTER:
            self._reset()
        first_token, decode = self._first_token.value, self._decode
        if self._engine is not None and (engine := self.engine) is not None:
            speed = self._decode_speed(engine)
            if speed is None and not self._first_token:
                return None
            if engine.prefill > 0:
                first_token = max(first_token, estimate.prompt / engine.prefill)
            return first_token + (estimate.expected / speed if speed else 0.0)
        if decode.over > 0 and decode.under > 0:
            return first_token + estimate.expected * decode.under / decode.over
        return first_token if self._first_token or decode.under > 0 else None
