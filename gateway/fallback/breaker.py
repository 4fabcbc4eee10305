"""A circuit breaker: a backend that keeps failing is left alone for a while, then tried with one request.

The states and their names are those of Nygard's "Release It!" (2nd edition, 2018, chapter 5).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.policy import schema

SOON = 1.0
"""Seconds after which to ask again while the probe is under way: how long it takes nobody knows."""


class Breaker:
    """Closed, it lets everything through; open, nothing; half-open, once the cooldown is over, a single probe."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[int, float], None] = lambda failures, cooldown: None,
    ) -> None:
        """``on_change`` is told of failures in a row and the cooldown when it opens, of none when it has closed."""
        self._clock = clock
        self._on_change = on_change
        self._failures = 0
        self._opened: float | None = None
        self._cooldown = 0.0
        self._probe: Trial | None = None

    @property
    def closed(self) -> bool:
        return self._opened is None

    def wait(self) -> float:
        """Seconds until a request may pass; 0 if one may now."""
        if self._opened is None:
            return 0.0
        left = self._opened + self._cooldown - self._clock()
        if left > 0:
            return left
        return SOON if self._probe is not None else 0.0

    def admit(self, limits: schema.Breaker) -> Trial | None:
        """A request's leave to pass, or None. Whoever gets one must tell how it ended."""
        if self._opened is None:
            return Trial(self, limits)
        self._cooldown = limits.cooldown
        if self.wait() > 0:
            return None
        self._probe = Trial(self, limits)
        return self._probe

    def proven(self) -> None:
        """The backend has shown that it serves again: its probe need not wait for the end of the cooldown."""
        if self._opened is not None:
            self._opened = float("-inf")

    def _succeeded(self, trial: Trial) -> None:
        if trial is self._probe:
            self._probe = self._opened = None
            self._on_change(0, 0.0)
        if self._opened is None:
            self._failures = 0

    def _failed(self, trial: Trial) -> None:
        if trial is self._probe:
            self._probe = None
            self._open(trial.limits)
        elif self._opened is None:
            self._failures += 1
            if self._failures >= trial.limits.failures:
                self._open(trial.limits)
                self._on_change(self._failures, trial.limits.cooldown)

    def _let_go(self, trial: Trial) -> None:
        if trial is self._probe:
            self._probe = None

    def _open(self, limits: schema.Breaker) -> None:
        self._opened = self._clock()
        self._cooldown = limits.cooldown


class Trial:
    """One request's pass. The first word on how it ended counts, later ones do not.

    A request from before the breaker opened says nothing about the backend as it is now: only the probe does.
    """

    __slots__ = ("_breaker", "limits")

    def __init__(self, breaker: Breaker, limits: schema.Breaker) -> None:
        self._breaker: Breaker | None = breaker
        self.limits = limits

    def succeeded(self) -> None:
        if (breaker := self._ended()) is not None:
            breaker._succeeded(self)

    def failed(self) -> None:
        if (breaker := self._ended()) is not None:
            breaker._failed(self)

    def let_go(self) -> None:
        """It ended for reasons that are not the backend's."""
        if (breaker := self._ended()) is not None:
            breaker._let_go(self)

    def _ended(self) -> Breaker | None:
        breaker, self._breaker = self._breaker, None
        return breaker
