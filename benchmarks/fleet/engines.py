"""Engines, one event at a time: continuous batching, of which only what changes a batch is an event.

Between two events each sequence of an engine gains a token a step, and the head of its queue a chunk of its prompt. So
an engine is a clock of steps: a sequence that is to gain n tokens ends n steps from now, however long these come to
take. A request is three events (its arrival, its first token, its last), whatever its length.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from benchmarks.fleet.machine import Machine
from benchmarks.fleet.queues import Places, Times

NEVER = float("inf")


@dataclass(slots=True)
class Engine:
    """Requests are numbers; what they want is asked from the arrays of ``Requests``."""

    machine: Machine
    queue: deque[int] = field(default_factory=deque)
    """Whose prompts are not computed yet, the first of them in part."""
    left: float = 0.0
    """Tokens of that one's prompt."""
    running: list[tuple[float, int]] = field(default_factory=list)
    """A heap: by the step in which it ends."""
    steps: float = 0.0
    at: float = 0.0
    """Until when it is simulated."""
    context: float = 0.0
    """Tokens of all running sequences, prompts included."""
    held: int = 0
    """Tokens of KV cache that are promised to running and started requests."""
    started: bool = False
    """The head of the queue has its memory."""
    busy: float = 0.0
    version: int = 0
    away_until: float = 0.0


class Listener(Protocol):
    def first(self, request: int, at: float) -> None: ...

    def last(self, request: int, at: float) -> None: ...


class Engines:
    def __init__(self, machine: Machine, count: int, prompt: Places, answer: Places, told: Listener) -> None:
        """``prompt`` and ``answer``: tokens by the request's number."""
        self.each = [Engine(machine) for _ in range(count)]
        self._prompt, self._answer = prompt.tolist(), answer.tolist()
        self._told = told
        self._events: list[tuple[float, int, int]] = []

    @property
    def next_event(self) -> float:
        return self._events[0][0] if self._events else NEVER

    def submit(self, number: int, request: int, at: float, fresh: int | None = None) -> None:
        """``request`` comes to an engine; ``fresh`` tokens of its prompt are not in the prefix cache."""
        engine = self.each[number]
        self._advance(engine, max(at, engine.at))
        engine.queue.append(request)
        if fresh is not None:
            self._prompt[request] = fresh
        if not engine.started:
            self._start(engine)
        self._plan(number, engine)

    def run_until(self, at: float) -> None:
        """All events up to ``at``."""
        events = self._events
        while events and events[0][0] <= at:
            when, number, version = heapq.heappop(events)
            engine = self.each[number]
            if version == engine.version:
                self._advance(engine, when)
                self._change(engine)
                self._plan(number, engine)

    def drop(self, number: int, at: float, until: float) -> list[int]:
        """The engine dies: what it had, and it is away until then."""
        engine = self.each[number]
        self._advance(engine, at)
        lost = [*engine.queue, *(request for _, request in engine.running)]
        engine.queue.clear()
        engine.running.clear()
        engine.context, engine.held, engine.left, engine.started = 0.0, 0, 0.0, False
        engine.away_until = until
        engine.version += 1
        return lost

    def _advance(self, engine: Engine, at: float) -> None:
        passed, engine.at = at - engine.at, at
        if passed <= 0 or not (engine.running or engine.started):
            return
        engine.busy += passed
        tokens, seconds = self._step(engine)
        steps = passed / seconds
        engine.steps += steps
        engine.context += steps * len(engine.running)
        if engine.started:
            engine.left -= steps * tokens

    def _step(self, engine: Engine) -> tuple[float, float]:
        if engine.started:
            return engine.machine.chunk(len(engine.running), engine.context)
        return 0.0, engine.machine.decode(len(engine.running), engine.context)

    def _plan(self, number: int, engine: Engine) -> None:
        """When something changes next: a prompt is computed, or a sequence ends."""
        engine.version += 1
        if not engine.running and not engine.started:
            return
        tokens, seconds = self._step(engine)
        steps = NEVER
        if engine.started:
            steps = max(0.0, engine.left) / tokens
        if engine.running:
            steps = min(steps, max(0.0, engine.running[0][0] - engine.steps))
        heapq.heappush(self._events, (engine.at + steps * seconds, number, engine.version))

    def _change(self, engine: Engine) -> None:
        while engine.running and engine.running[0][0] <= engine.steps + 1e-6:
            _, request = heapq.heappop(engine.running)
            self._end(engine, request)
        if engine.started and engine.left <= 1e-6:
            request = engine.queue.popleft()
            engine.started = False
            self._told.first(request, engine.at + engine.machine.request)
            engine.context += self._prompt[request] + 1
            if self._answer[request] > 1:
                heapq.heappush(engine.running, (engine.steps + self._answer[request] - 1, request))
            else:
                self._end(engine, request)
        if not engine.started:
            self._start(engine)

    def _end(self, engine: Engine, request: int) -> None:
        tokens = self._prompt[request] + self._answer[request]
        engine.context = max(0.0, engine.context - tokens)
        engine.held -= tokens
        self._told.last(request, engine.at + engine.machine.request)

    def _start(self, engine: Engine) -> None:
        """The next prompt, where there is room for its sequence."""
        if not engine.queue or len(engine.running) >= engine.machine.max_num_seqs:
            return
        request = engine.queue[0]
        tokens = self._prompt[request] + self._answer[request]
        if engine.held + tokens > engine.machine.tokens and engine.running:
            return
        engine.held += tokens
        engine.left = float(self._prompt[request])
        engine.started = True


def served_alone(machine: Machine, at: Times, prompt: Places, answer: Places) -> tuple[Times, Times]:
    """First and last tokens' times at one engine."""
    found = Marks(len(at))
    engines = Engines(machine, 1, prompt, answer, found)
    for request, when in enumerate(at.tolist()):
        engines.run_until(when)
        engines.submit(0, request, when)
    engines.run_until(NEVER)
    return found.firsts, found.lasts


class Marks:
    """Keeps when first and last tokens came."""

    def __init__(self, count: int) -> None:
        self.firsts = np.full(count, np.nan)
        self.lasts = np.full(count, np.nan)

    def first(self, request: int, at: float) -> None:
        self.firsts[request] = at

    def last(self, request: int, at: float) -> None:
        self.lasts[request] = at
