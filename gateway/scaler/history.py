"""What a backend's demand was, in slots of five minutes over four weeks, and what that says of the next minutes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SLOT = 300
"""Seconds."""
DAY = 86_400 // SLOT
WEEK = 7 * DAY
KEPT = 4 * WEEK
RECENT = 6
"""Slots by which today is compared with other days."""
MOST_UNLIKE = 4.0
"""Times other days' demand that today's may be: a spike at night does not foretell a spike at noon."""
COVERED = 0.8
"""The share of errors of this forecast, at this lead, that the margin covers."""
ERRORS = 288
LONGEST_LEAD = 86_400.0
"""Seconds: what seems longer was no load of an engine, but a clock that jumped, or a limit of replicas."""


@dataclass(slots=True)
class History:
    """Means of samples by slot of Unix time, in requests in flight or waiting.

    The forecast is seasonal: the mean of the same slot in other weeks, or on other days where there is no week yet,
    times by how much the last half hour was above or below its own (Holt-Winters' multiplicative form, no trend).
    """

    means: dict[int, float] = field(default_factory=dict)
    """By the slot's number since 1970."""
    errors: list[float] = field(default_factory=list)
    """Demand over forecast, of the last slots that were foretold."""
    _slot: int = -1
    _sum: float = 0.0
    _count: int = 0
    _foretold: dict[int, float] = field(default_factory=dict)

    def add(self, now: float, demand: float) -> None:
        """A sample of ``now``, in Unix time."""
        slot = int(now // SLOT)
        if slot != self._slot:
            self._close(slot)
        self._sum += demand
        self._count += 1

    def _close(self, slot: int) -> None:
        if self._count:
            mean = self._sum / self._count
            self.means[self._slot] = mean
            if (foretold := self._foretold.pop(self._slot, 0.0)) > 0:
                self.errors = [*self.errors, mean / foretold][-ERRORS:]
            if len(self.means) >= KEPT + DAY:
                self.means = {one: kept for one, kept in self.means.items() if one > self._slot - KEPT}
            self._foretold = {one: value for one, value in self._foretold.items() if one >= slot}
        self._slot, self._sum, self._count = slot, 0.0, 0

    def forecast(self, now: float, lead: float) -> float | None:
        """The most demand from ``now`` until ``lead`` seconds later that is to be expected; None: not known yet."""
        slot = int(now // SLOT)
        last = int((now + lead) // SLOT) + 1
        today = [
            (self.means[one], self._usual(one)) for one in range(slot - RECENT, slot) if one in self.means
        ]
        known = [(mean, usual) for mean, usual in today if usual is not None]
        if len(known) < RECENT // 2:
            return None
        level = (sum(mean for mean, _ in known) + 1) / (sum(usual for _, usual in known) + 1)
        level = min(MOST_UNLIKE, max(1 / MOST_UNLIKE, level))
        coming = [usual * level for one in range(slot, last + 1) if (usual := self._usual(one)) is not None]
        if not coming:
            return None
        most = max(coming)
        self._foretold.setdefault(last, most)
        return most * self._margin()

    def _usual(self, slot: int) -> float | None:
        """What other weeks had then, with the slots beside it, as a peak does not come on the minute."""
        for season, most in ((WEEK, 4), (DAY, 7)):
            found = [
                self.means[one]
                for weeks in range(1, most + 1)
                for one in range(slot - weeks * season - 1, slot - weeks * season + 2)
                if one in self.means
            ]
            if found:
                return sum(found) / len(found)
        return None

    def _margin(self) -> float:
        if len(self.errors) < RECENT:
            return 1.0
        ranked = sorted(self.errors)
        return max(1.0, ranked[min(len(ranked) - 1, math.ceil(COVERED * len(ranked)) - 1)])

    def to_json(self) -> dict[str, Any]:
        return {
            "means": {str(slot): round(mean, 3) for slot, mean in self.means.items()},
            "errors": [round(error, 4) for error in self.errors],
        }

    @classmethod
    def from_json(cls, value: Any) -> History:
        """Raises ``ValueError``."""
        try:
            means = {int(slot): float(mean) for slot, mean in value["means"].items()}
            errors = [float(error) for error in value["errors"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no history of demand: {error}") from None
        if not all(map(_is_amount, (*means.values(), *errors))):
            raise ValueError("no history of demand: an amount is none")
        return cls(means, errors)


def _is_amount(value: float) -> bool:
    return 0 <= value < math.inf


@dataclass(slots=True)
class Lead:
    """How long it takes from the need of one more engine until it serves: the median of the last five times."""

    usual: float
    """Seconds, before there was one."""
    seen: list[float] = field(default_factory=list)
    _wanted_since: float | None = None
    _ready: int = 0

    @property
    def seconds(self) -> float:
        return sorted(self.seen)[len(self.seen) // 2] if self.seen else self.usual

    def note(self, now: float, ready: int, wanted: int) -> None:
        """``ready`` engines serve and ``wanted`` are asked for. ``now`` is in seconds of any clock."""
        if self._wanted_since is not None and ready > self._ready:
            if 0 <= (took := now - self._wanted_since) <= LONGEST_LEAD:
                self.seen = [*self.seen, took][-5:]
            self._wanted_since = None
        self._ready = ready
        if wanted <= ready:
            self._wanted_since = None
        elif self._wanted_since is None:
            self._wanted_since = now


def dumps(histories: Sequence[tuple[str, History]]) -> bytes:
    return json.dumps({"version": 1, "histories": {key: one.to_json() for key, one in histories}}).encode()


def loads(text: bytes) -> dict[str, History]:
    """Raises ``ValueError``."""
    value = json.loads(text)
    if (
        not isinstance(value, dict)
        or value.get("version") != 1
        or not isinstance(value.get("histories"), dict)
    ):
        raise ValueError("no file of this scaler")
    return {key: History.from_json(one) for key, one in value["histories"].items()}
