"""What one hour of a model and route looked like: counts by bin for each measure. Sums of them are exact, so whoever
adds what to what, and in which order, comes to the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Self

from gateway.drift.measures import MEASURES

Bins = Counter[Any]
"""Counts by the number of a bin, or by a name where the measure is a ``kind``."""
MOST_NAMES = 24
"""Names of a kind; further ones are counted as ``other``."""
OTHER = "other"


class HourSketch:
    def __init__(self, bins: Mapping[str, Bins] | None = None) -> None:
        self.bins: dict[str, Bins] = dict(bins or {})

    def count(self, measure: str, place: int | str) -> None:
        self.bins.setdefault(measure, Counter())[place] += 1

    def merge(self, other: HourSketch) -> None:
        for measure, bins in other.bins.items():
            self.bins.setdefault(measure, Counter()).update(bins)

    def of(self, measure: str) -> Bins:
        return self.bins.get(measure) or Counter()

    def to_json(self) -> dict[str, Any]:
        return {name: _packed(name, bins) for name, bins in sorted(self.bins.items()) if bins}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Measures that a later version knows are left out."""
        return cls({name: _unpacked(bins) for name, bins in content.items() if name in MEASURES})


def merged(sketches: Iterable[Bins]) -> Bins:
    whole: Bins = Counter()
    for one in sketches:
        whole.update(one)
    return whole


def _packed(measure: str, bins: Bins) -> list[int] | dict[str, int]:
    """Numbered bins as the first one's number and all counts from there on: a quarter of what names would take."""
    if MEASURES[measure] == "kind":
        kept = dict(bins.most_common(MOST_NAMES))
        left = bins.total() - sum(kept.values())
        if left:
            kept[OTHER] = kept.get(OTHER, 0) + left
        return kept
    first = min(bins)
    return [first, *(bins[number] for number in range(first, max(bins) + 1))]


def _unpacked(packed: list[int] | dict[str, int]) -> Bins:
    if isinstance(packed, dict):
        return Counter({str(name): int(count) for name, count in packed.items()})
    first, *counts = packed
    return Counter({first + place: count for place, count in enumerate(counts) if count})
