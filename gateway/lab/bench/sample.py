"""What became of one request."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal[
    "unreachable",  # no connection
    "timeout",
    "refused",  # 429: a limit or budget
    "overloaded",  # 503, 529
    "status",  # any other
    "error event",  # 200, and then an error in the stream or body
    "broken stream",  # cut off, or ended without saying so
    "malformed",
    "client",  # this side has no more sockets
    "interrupted",  # by Ctrl-C; never counted
]


@dataclass(frozen=True, slots=True)
class Failure:
    kind: Kind
    status: int = 0
    code: str = ""
    message: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, str(self.status or ""), self.code)))


@dataclass(slots=True)
class Sample:
    """Times are seconds since the run began; latencies count from ``intended``."""

    conversation: int
    turn: int
    intended: float
    """When it was to be sent: by the schedule in an open loop, else when it was sent."""
    warm_up: bool = False
    sent: float = 0.0
    """When the client got to it, before it had a connection."""
    first: float | None = None
    last: float | None = None
    end: float = 0.0
    gaps: array[float] = field(default_factory=lambda: array("d"))
    chunks: int = 0
    prompt_tokens: int | None = None
    output_tokens: int = 0
    counted_by_server: bool = True
    """Of ``output_tokens``; otherwise they are the chunks."""
    finish: str = ""
    failure: Failure | None = None

    @property
    def ok(self) -> bool:
        return self.failure is None

    @property
    def lag(self) -> float:
        """How late the client itself was."""
        return self.sent - self.intended

    @property
    def e2e(self) -> float:
        return self.end - self.intended

    @property
    def ttft(self) -> float | None:
        """Time to first token; of a streamed answer alone."""
        return None if self.first is None else self.first - self.intended

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first."""
        if self.first is None or self.last is None or self.output_tokens < 2:
            return None
        return (self.last - self.first) / (self.output_tokens - 1)
