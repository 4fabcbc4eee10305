"""What is known of each backend's health. It outlives policies: an edit must not send a crowd to a sick server."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.fallback.breaker import Breaker
from gateway.fallback.retry import RetryBudget


@dataclass(slots=True)
class Line:
    breaker: Breaker
    budget: RetryBudget = field(default_factory=RetryBudget)


class Switchboard:
    """One line per backend, by name. A worker has one of these, for as long as it lives."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` counts seconds; its zero does not matter."""
        self._clock = clock
        self._lines: dict[str, Line] = {}

    def __getitem__(self, backend: str) -> Line:
        line = self._lines.get(backend)
        if line is None:
            line = self._lines[backend] = Line(Breaker(self._clock))
        return line
