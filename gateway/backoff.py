"""How long to wait before another attempt."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds: ``first`` after one failure, doubled after each further one, ``most`` at the most."""

    first: float
    most: float = float("inf")

    def after(self, failures: int, asked: float | None = None) -> float:
        """``asked`` is what the server asks for (``Retry-After``): longer ones are heeded, up to ten times ``most``."""
        wait = min(self.first * 2.0 ** min(failures - 1, 32), self.most)
        return wait if asked is None else min(max(wait, asked), 10 * self.most)

    def drawn(self, failures: int) -> float:
        """From 0 to what ``after`` says, which spreads best what failed together ("full jitter",
        https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/)."""
        return random.uniform(0, self.after(failures))
