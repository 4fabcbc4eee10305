"""How many tokens prompts and answers have: one number, or a distribution."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

from gateway.lab.bench.errors import OptionError

MOST = 10_000_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """Between ``least`` and ``most``: uniform, or, with a ``sigma``, log-normal about ``median``."""

    least: int
    most: int
    median: float = 0.0
    sigma: float | None = None

    def draw(self, random: Random) -> int:
        if self.sigma is None:
            return random.randint(self.least, self.most)
        drawn = self.median * math.exp(self.sigma * random.gauss(0, 1))
        return max(self.least, min(self.most, round(drawn)))


def parse_lengths(text: str, option: str) -> Lengths:
    """``128``, ``fixed:128``, ``uniform:64-512``, ``lognormal:MEDIAN,SIGMA`` or ``lognormal:MEDIAN,SIGMA,MOST``."""
    kind, colon, rest = text.partition(":")
    if not colon:
        kind, rest = "fixed", text
    try:
        match kind:
            case "fixed":
                least = most = int(rest)
                found = Lengths(least, most)
            case "uniform":
                least, most = (int(part) for part in rest.split("-"))
                found = Lengths(least, most)
            case "lognormal":
                median, sigma, *bound = (float(part) for part in rest.split(","))
                if len(bound) > 1 or not (median >= 1 and 0 <= sigma <= 10 and math.isfinite(median)):
                    raise ValueError
                found = Lengths(1, int(bound[0]) if bound else MOST, median, sigma)
            case _:
                raise ValueError
        if not 1 <= found.least <= found.most <= MOST:
            raise ValueError
    except (ValueError, OverflowError):
        raise OptionError(
            f"{option}: '{text}' is no length in tokens; write 128, uniform:64-512, or lognormal:MEDIAN,SIGMA "
            "(lognormal:300,1.0), with ,MOST behind it as a bound"
        ) from None
    return found
