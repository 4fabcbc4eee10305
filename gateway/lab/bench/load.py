"""How a server is loaded: so many requests at a time, or requests at their times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from random import Random

from gateway.lab.bench.arrivals import Arrivals, Rate
from gateway.lab.bench.conversations import Conversation


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is asked. The warm-up comes before that, and is not counted.

    ``requests`` counts conversations, where these have several turns.
    """

    requests: int | None = None
    seconds: float | None = None
    warm_up_requests: int = 0
    warm_up_seconds: float = 0.0

    @property
    def total(self) -> int | None:
        return None if self.requests is None else self.warm_up_requests + self.requests

    @property
    def until(self) -> float | None:
        return None if self.seconds is None else self.warm_up_seconds + self.seconds

    def is_warm_up(self, number: int, at: float) -> bool:
        return number < self.warm_up_requests or at < self.warm_up_seconds


@dataclass(frozen=True, slots=True)
class Load:
    """Closed: ``concurrency`` conversations at a time, each followed by the next. Open: with a ``rate`` and its
    ``arrivals``, or at the times of a trace; there ``concurrency`` bounds those in flight, and who waits for that is
    late already."""

    concurrency: int | None = None
    rate: Rate | None = None
    arrivals: Arrivals | None = None
    traced: bool = False

    @property
    def is_open(self) -> bool:
        return self.rate is not None or self.traced

    def schedule(
        self, conversations: Iterator[Conversation], extent: Extent, random: Random
    ) -> Iterator[tuple[float, Conversation]]:
        """Of an open loop: the seconds at which each begins."""
        conversations = islice(conversations, extent.total)
        pairs: Iterable[tuple[float, Conversation]]
        if self.rate is not None and self.arrivals is not None:
            pairs = zip(self.arrivals.times(self.rate, random), conversations, strict=False)
        else:
            pairs = ((conversation.at, conversation) for conversation in conversations)
        for at, conversation in pairs:
            if extent.until is not None and at >= extent.until:
                return
            yield at, conversation

    def __str__(self) -> str:
        most = f", at most {self.concurrency} at a time" if self.concurrency and self.is_open else ""
        if self.rate is not None:
            return f"{self.rate} {self.arrivals}{most}"
        return f"as traced{most}" if self.traced else f"{self.concurrency} at a time"
