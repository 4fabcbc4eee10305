"""What traces tell of a request: when it arrived, waited, was prefilled and decoded, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from engine.server.prepare import PreparedRequest
from engine.server.vllm_metrics import RequestTimeline


class Phase(NamedTuple):
    name: str
    start: float
    """``time.monotonic()``, as ``end``."""
    end: float


@dataclass(slots=True)
class TracedRequest:
    """One HTTP request. Its times are those of ``time.monotonic()``."""

    path: str
    headers: Mapping[bytes, bytes]
    """The caller's, its ``traceparent`` among them."""
    began: float = field(default_factory=time.monotonic)
    prepared: PreparedRequest | None = None
    """None for a request that was refused before it was understood."""
    timelines: list[RequestTimeline] = field(default_factory=list)
    """Of its sequences."""
    status: int = 0
    """Of the response; 0 where the caller left before it began."""
    error: str | None = None
    """Why it failed, by a code of ``engine.errors``; ``hung_up`` where the caller left."""

    @property
    def phases(self) -> list[Phase]:
        """``queue``, ``prefill`` and ``decode``, one after another; none without a token. Of several sequences the
        first to be scheduled, the first token of all, and the last one.
        """
        begun = [one for one in self.timelines if one.tokens]
        if not begun:
            return []
        submitted = min(one.submitted for one in begun)
        scheduled = min(one.submitted + one.queued for one in begun)
        first = max(scheduled, min(one.first_token for one in begun))
        last = max(one.last_token for one in begun)
        return [
            Phase("queue", submitted, scheduled),
            Phase("prefill", scheduled, first),
            Phase("decode", first, last),
        ]


class Tracer(Protocol):
    def record(self, request: TracedRequest) -> None:
        """A request has ended. Must not block."""
        ...

    def close(self) -> None:
        """Export what waits. Blocks."""
        ...
