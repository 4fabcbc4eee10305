"""What an answer must keep to be worth counting: a service level objective, and who met it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.lab.bench.errors import OptionError
from gateway.lab.bench.sample import Sample
from gateway.policy.schema import parse_duration

BOUNDS = ("ttft", "tpot", "itl", "e2e")
GAPS = 0.99
"""The share of an answer's gaps that an ``itl`` bounds: below 100 gaps all of them."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Seconds, by name. Without any, all that succeed are good."""

    bounds: Mapping[str, float]

    def met(self, sample: Sample) -> bool:
        return sample.ok and all(self.keeps(name, sample) for name in self.bounds)

    def keeps(self, name: str, sample: Sample) -> bool:
        """One bound; what an answer has no figure for, as one token has no gaps, it keeps."""
        bound = self.bounds[name]
        if name == "itl":
            within = sum(gap <= bound for gap in sample.gaps)
            return within >= GAPS * len(sample.gaps)
        found: float | None = getattr(sample, name)
        return found is None or found <= bound

    def __str__(self) -> str:
        return ", ".join(f"{name} ≤ {1000 * bound:g} ms" for name, bound in self.bounds.items())


def parse_slo(text: str | None) -> Slo:
    """``ttft=500ms,itl=50ms,e2e=5s``."""
    bounds: dict[str, float] = {}
    for part in (text or "").split(","):
        if not part and not text:
            continue
        name, _, value = part.strip().partition("=")
        try:
            seconds = parse_duration(value)
            if name not in BOUNDS or name in bounds:
                raise ValueError
        except ValueError:
            raise OptionError(
                f"--slo: '{part}' is no bound; write ttft=500ms,tpot=50ms,itl=200ms,e2e=5s, or some of them"
            ) from None
        bounds[name] = seconds
    return Slo(bounds)
