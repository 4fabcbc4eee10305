"""The search for the knee: the highest rate at which a server still keeps its SLO."""

from __future__ import annotations

from dataclasses import dataclass, field

LEAST = 1 / 64
"""Of the first rate: below that no search goes."""


@dataclass
class KneeSearch:
    """Doubles the rate until the SLO no longer holds, and then halves the gap.

    A rate holds where most of ``repeats`` trials had ``share`` of their requests within the SLO. The search ends once
    the lowest rate that failed is at most ``tolerance`` above the highest one that held.
    """

    first: float
    most: float
    share: float
    repeats: int
    tolerance: float
    held: float = 0.0
    failed: float | None = None
    trials: dict[float, list[float]] = field(default_factory=dict)
    """By rate, the shares that were found."""

    def next(self) -> float | None:
        """The rate to try now; None where all is known."""
        for rate, shares in self.trials.items():
            if self._verdict(shares) is None:
                return rate
        if self.failed is None:
            if self.held >= self.most:
                return None
            return min(self.most, 2 * self.held if self.held else self.first)
        if not self.held:
            lower = self.failed / 2
            return lower if lower >= self.first * LEAST else None
        if self.failed <= self.held * (1 + self.tolerance):
            return None
        return (self.held + self.failed) / 2

    def tell(self, rate: float, share: float) -> None:
        """One trial's outcome."""
        shares = self.trials.setdefault(rate, [])
        shares.append(share)
        verdict = self._verdict(shares)
        if verdict:
            self.held = max(self.held, rate)
        elif verdict is False:
            self.failed = rate if self.failed is None else min(self.failed, rate)

    def _verdict(self, shares: list[float]) -> bool | None:
        """None while more trials could turn it."""
        held = sum(share >= self.share for share in shares)
        if 2 * held > self.repeats:
            return True
        return False if 2 * (held + self.repeats - len(shares)) <= self.repeats else None

    @property
    def is_bounded(self) -> bool:
        """The knee was found, rather than the highest rate that was allowed."""
        return self.failed is not None
