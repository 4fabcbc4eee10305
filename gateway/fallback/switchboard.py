"""What is known of each backend's health. It outlives policies: an edit must not send a crowd to a sick server."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gateway.fallback.breaker import Breaker
from gateway.fallback.retry import RetryBudget


class Watch(Protocol):
    """Told of each change of state, once."""

    def breaker_opened(self, backend: str, failures: int, cooldown: float) -> None: ...
    def breaker_closed(self, backend: str) -> None: ...
    def credentials_refused(self, backend: str, model: str, error: str) -> None: ...
    def credentials_accepted(self, backend: str) -> None: ...


@dataclass(slots=True)
class Line:
    breaker: Breaker
    budget: RetryBudget = field(default_factory=RetryBudget)
    refused: dict[str, str] = field(default_factory=dict)
    """Models (as the backend knows them) for which it refuses our credentials, and the error's code."""


class Switchboard:
    """One line per backend, by name. A worker has one of these, for as long as it lives."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, watch: Watch | None = None) -> None:
        """``clock`` counts seconds; its zero does not matter."""
        self._clock = clock
        self._watch = watch
        self._lines: dict[str, Line] = {}

    def __getitem__(self, backend: str) -> Line:
        line = self._lines.get(backend)
        if line is None:
            line = self._lines[backend] = Line(Breaker(self._clock, self._breaker_changes(backend)))
        return line

    def refused(self, backend: str, model: str, error: str) -> None:
        """Our credentials were refused, or not paid for: until an answer to the same model says otherwise."""
        refused = self[backend].refused
        if not refused and self._watch is not None:
            self._watch.credentials_refused(backend, model, error)
        refused[model] = error

    def accepted(self, backend: str, model: str | None = None) -> None:
        """They are good for ``model`` again; or for all, as they are others now."""
        refused = self[backend].refused
        if not refused:
            return
        if model is None:
            refused.clear()
        else:
            refused.pop(model, None)
        if not refused and self._watch is not None:
            self._watch.credentials_accepted(backend)

    def trouble(self, backend: str) -> str | None:
        """What requests have shown to be wrong with a backend, for whoever looks after it."""
        line = self._lines.get(backend)
        if line is None:
            return None
        if line.refused:
            model, error = next(iter(line.refused.items()))
            what = "wants to be paid" if error == "upstream_billing" else "refuses the gateway's credentials"
            return f"{what} (asked for '{model}'); its api_key needs the operator's care"
        return "it failed of late, and is left alone for a while" if line.breaker.wait() else None

    def _breaker_changes(self, backend: str) -> Callable[[int, float], None]:
        def changed(failures: int, cooldown: float) -> None:
            if self._watch is None:
                return
            if failures:
                self._watch.breaker_opened(backend, failures, cooldown)
            else:
                self._watch.breaker_closed(backend)

        return changed
