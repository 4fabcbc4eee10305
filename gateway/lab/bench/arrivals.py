"""When requests arrive, whatever becomes of those before them.

A process is drawn at a mean of one arrival a unit, and a rate stretches its time. So the same seed gives the same
arrivals at every rate, only denser: a search over rates compares like with like.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from random import Random

from gateway.lab.bench.errors import OptionError


@dataclass(frozen=True, slots=True)
class Rate:
    """Arrivals a second: ``first``, or rising or falling evenly to ``last`` over ``span`` seconds, and then that."""

    first: float
    last: float
    span: float = 0.0

    @classmethod
    def constant(cls, rate: float) -> Rate:
        return cls(rate, rate)

    def expected(self, seconds: float) -> float:
        """Arrivals until then, on average."""
        ramp = min(seconds, self.span)
        slope = (self.last - self.first) / self.span if self.span else 0.0
        return self.first * ramp + slope * ramp * ramp / 2 + self.last * (seconds - ramp)

    def when(self, expected: float) -> float:
        """The time until which so many are expected: the inverse of ``expected``. Infinite where that never comes."""
        on_ramp = self.expected(self.span)
        if expected > on_ramp or not self.span:
            return self.span + (expected - on_ramp) / self.last if self.last else math.inf
        if not expected:
            return 0.0
        slope = (self.last - self.first) / self.span
        return 2 * expected / (self.first + math.sqrt(max(0.0, self.first**2 + 2 * slope * expected)))

    def __str__(self) -> str:
        return f"{self.first:g}/s" if self.first == self.last else f"{self.first:g}-{self.last:g}/s"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """``constant``; ``gamma`` gaps of shape ``of``, 1 being a Poisson process; or ``burst``: ``of`` at a time, and
    their times a Poisson process."""

    kind: str
    of: float

    def units(self, random: Random) -> Iterator[float]:
        """For ever, never falling, one a unit on average."""
        if self.kind == "constant":
            yield from map(float, count())
        now = 0.0
        while self.kind == "burst":
            now += random.expovariate(1.0) * self.of
            for _ in range(int(self.of)):
                yield now
        while True:
            now += random.expovariate(1.0) if self.of == 1 else random.gammavariate(self.of, 1 / self.of)
            yield now

    def times(self, rate: Rate, random: Random) -> Iterator[float]:
        """Seconds; they end where the rate falls to nothing."""
        for unit in self.units(random):
            if (at := rate.when(unit)) == math.inf:
                return
            yield at

    def __str__(self) -> str:
        return {"constant": "constant", "burst": f"bursts of {self.of:g}"}.get(
            self.kind, "Poisson" if self.of == 1 else f"gamma {self.of:g}"
        )


def parse_arrivals(text: str) -> Arrivals:
    """``poisson``, ``constant``, ``gamma:SHAPE`` or ``burst:SIZE``."""
    kind, _, of = text.partition(":")
    try:
        match kind:
            case "poisson" if not of:
                return Arrivals("gamma", 1.0)
            case "constant" if not of:
                return Arrivals("constant", 1.0)
            case "gamma" if 0.01 <= float(of) <= 1000:
                return Arrivals("gamma", float(of))
            case "burst" if 1 <= int(of) <= 100_000:
                return Arrivals("burst", int(of))
    except ValueError:
        pass
    raise OptionError(
        f"--arrivals: '{text}' is none; write poisson, constant, gamma:SHAPE (below 1 burstier than poisson, above "
        "it smoother), or burst:SIZE"
    )


def parse_rate(text: str, span: float | None) -> Rate:
    """``8``, or ``1-20`` for a rate that goes from the one to the other in ``span`` seconds."""
    first, dash, last = text.partition("-")
    try:
        low, high = float(first), float(last if dash else first)
        if not (0 <= low <= 1e6 and 0 <= high <= 1e6 and max(low, high) > 0):
            raise ValueError
    except ValueError:
        raise OptionError(
            f"--rate: '{text}' is no rate; write requests a second, as 8, 2,4,8 (one after another), or 1-20 (a ramp)"
        ) from None
    if not dash:
        return Rate.constant(low)
    if span is None:
        raise OptionError("--rate: a ramp needs --duration, in which it goes from the one rate to the other")
    return Rate(low, high, span)
