"""The spans of a sampled request, as plain data: who exports them, and in which form, is no business of the stages.

Times are those of ``time.perf_counter()``; ``Trace.unix_ns`` turns them into Unix time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

Value = str | bool | int | float | tuple[str, ...]
Attributes = dict[str, Value]
Kind = Literal["server", "client", "internal"]
Notes = Mapping[str, Mapping[str, Any]]
"""A receipt's, by stage."""

_REPEATED = "queue"
"""The stage that a request may pass several times, each time with another outcome."""


def new_span_id() -> str:
    """16 hex digits; never all zero, which is no id."""
    return f"{random.getrandbits(64) or 1:016x}"


def ids_of(request_id: str) -> tuple[str, str]:
    """A traced request's trace id, where its caller gives none, and the id of its own span: whoever comes to judge it
    later finds them by its id alone."""
    digest = blake2b(request_id.encode(), digest_size=24).hexdigest()
    return digest[:32], digest[32:]


@dataclass(slots=True)
class Span:
    """``name`` and ``attributes`` are as the newest conventions have them."""

    name: str
    kind: Kind
    trace_id: str
    span_id: str
    parent_id: str | None
    start: int
    """Unix time in nanoseconds, as ``end``."""
    end: int
    attributes: Attributes
    error: str | None = None
    """Why it failed: one of a bounded set of codes."""
    trace_state: str = ""
    parent_is_remote: bool = False


@dataclass(slots=True)
class Decision:
    """A request's way through one stage, from its entry until it went on to the next."""

    stage: str
    start: float
    end: float
    facts: Mapping[str, Any] | None = None
    """What the stage noted, where it is asked more than once; else the receipt has it in the end."""


@dataclass(slots=True, eq=False)
class Trace:
    """What is known of a sampled request so far. All copies of its call share it."""

    trace_id: str
    parent_id: str | None
    """The caller's span."""
    state: str
    """The caller's ``tracestate``."""
    content: bool
    """Whether prompts and answers may be told."""
    export: Callable[[list[Span]], object]
    span_id: str = field(default_factory=new_span_id)
    """Of the whole request."""
    asked: Any = None
    """The request, and what collects its answer, as guards let them through; where ``content`` says so."""
    answer: Any = None
    decisions: list[Decision] = field(default_factory=list)
    attempts: list[Span] = field(default_factory=list)
    _open: tuple[str, float] | None = None
    _closed: bool = False
    _zero: int = field(default_factory=lambda: time.time_ns() - int(time.perf_counter() * 1e9))

    def unix_ns(self, at: float) -> int:
        return self._zero + int(at * 1e9)

    def traceparent(self, span_id: str) -> str:
        """For what is asked on behalf of this request: it is sampled, too."""
        return f"00-{self.trace_id}-{span_id}-01"

    def enter(self, stage: str, notes: Notes) -> None:
        """The request arrives at ``stage``: the one before has let it through."""
        now = time.perf_counter()
        self.leave(now, notes)
        self._open = stage, now

    def leave(self, at: float, notes: Notes) -> None:
        """The stage that was entered last has decided."""
        if self._open is None:
            return
        stage, start = self._open
        self._open = None
        facts = dict(notes.get(stage, ())) if stage == _REPEATED else None
        self.decisions.append(Decision(stage, start, max(at, start), facts))

    def add_attempt(self, span: Span) -> None:
        """A copy for a shadow model can end after its request: its span leaves at once."""
        if self._closed:
            self.export([span])
        else:
            self.attempts.append(span)

    def close(self, spans: list[Span]) -> None:
        """The request has ended; ``spans`` are its own, beside those of its attempts."""
        self._closed = True
        self.export([*spans, *self.attempts])
        self.attempts = []
