"""Servers that share the cores of one machine: where more compute than there are cores, all of them take longer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class Worker(Protocol):
    now: float
    busy: float

    @property
    def has_work(self) -> bool: ...

    def begin(self, until: float) -> tuple[float, Callable[[float], None]]: ...


@dataclass(slots=True)
class _Step:
    left: float
    """Seconds that it would still take on a machine of its own."""
    began: float
    finish: Callable[[float], None]


@dataclass(slots=True)
class Cores:
    """Processor sharing: all that compute have equal parts of the cores."""

    cores: float
    """Those that servers have: without what gateway and clients take."""
    each: float = 1.0
    """That a server which computes alone keeps busy."""
    beside: float = 1.0
    """How many times as long a step takes where another server computes beside it, on a core of its own: they share
    memory and caches."""
    now: float = 0.0
    _servers: list[Worker] = field(default_factory=list)
    _steps: dict[int, _Step] = field(default_factory=dict)
    """In progress, by the number of the server."""

    def add(self, server: Worker) -> None:
        self._servers.append(server)

    def stretch(self, computing: int) -> float:
        """How many times as long a step takes."""
        if computing < 2:
            return 1.0
        return max(1.0, computing * self.each / self.cores) * self.beside

    @property
    def stretched(self) -> float:
        """Now."""
        return self.stretch(len(self._steps))

    def run(self, until: float) -> None:
        """All servers, together."""
        while True:
            for number, server in enumerate(self._servers):
                if number not in self._steps and server.has_work:
                    self._steps[number] = _Step(*self._begun(server))
            if not self._steps:
                break
            stretch = self.stretched
            least = min(step.left for step in self._steps.values()) * stretch
            if self.now + least > until:
                for step in self._steps.values():
                    step.left -= max(0.0, until - self.now) / stretch
                break
            self.now += least
            for number, step in [*self._steps.items()]:
                step.left -= least / stretch
                if step.left < 1e-12:
                    del self._steps[number]
                    server = self._servers[number]
                    server.now, took = self.now, self.now - step.began
                    server.busy += took
                    step.finish(took)
        self.now = max(self.now, until)
        for server in self._servers:
            server.now = self.now

    def _begun(self, server: Worker) -> tuple[float, float, Callable[[float], None]]:
        server.now = self.now
        seconds, finish = server.begin(self.now)
        return seconds, self.now, finish
