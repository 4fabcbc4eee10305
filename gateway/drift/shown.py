"""A drift as one looks at it: the last week hour by hour, and the distribution then and now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gateway.drift.hour_sketch import Bins, HourSketch, merged
from gateway.drift.hourly import median
from gateway.drift.measures import MEASURES, Kind, value_of
from gateway.drift.table import DAY, HOUR, WEEK, WEEKS, DriftTable, FoundDrift, Place

RECENT = 6
"""Hours that are shown as now, against the same ones of earlier weeks."""
_BARS = 14
"""Of a distribution of numbers."""
_MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class Shown:
    hours: list[tuple[int, float | None]]
    """The last week's, and what the measure was: a median or a share (of the name that changed most); None where nobody
    asked."""
    bars: list[tuple[str, float, float]]
    """What, which share of it was before, and which is now."""


def shown(table: DriftTable, drift: FoundDrift, until: int) -> Shown:
    """``until``: the last hour that was judged. Raises ``DatabaseError``."""
    place, kind = Place(drift.model, drift.route), MEASURES[drift.measure]
    week = table.hours(until - 7 * DAY + HOUR, until + HOUR, place)
    name = drift.facts.get("name", 1)
    hours = [
        (hour, _value(kind, week.get(hour), drift.measure, name))
        for hour in range(until - 7 * DAY + HOUR, until + HOUR, HOUR)
    ]
    recent = range(until - (RECENT - 1) * HOUR, until + HOUR, HOUR)
    now = merged(week[hour].of(drift.measure) for hour in recent if hour in week)
    earlier = [
        table.hours(recent[0] - WEEK * back, recent[-1] + HOUR - WEEK * back, place)
        for back in range(1, WEEKS + 1)
    ]
    before = merged(one.of(drift.measure) for each in earlier for one in each.values())
    return Shown(hours, _bars(kind, before, now) if now and before else [])


def _value(kind: Kind, sketch: HourSketch | None, measure: str, name: Any) -> float | None:
    bins = sketch.of(measure) if sketch is not None else None
    if not bins:
        return None
    if kind in ("share", "kind"):
        return round(bins[name] / bins.total(), 5)
    return median(kind, bins)


def _bars(kind: Kind, before: Bins, now: Bins) -> list[tuple[str, float, float]]:
    if kind == "share":
        return [("yes", *_shares(1, before, now)), ("no", *_shares(0, before, now))]
    if kind == "kind":
        both = before + now
        names = [name for name, _ in both.most_common(_MOST_NAMES)]
        return [(name, *_shares(name, before, now)) for name in names]
    low, high = _edges(before + now)
    width = max(1, -(-(high - low + 1) // _BARS))
    bars = []
    for start in range(low, high + 1, width):
        first, last = start == low, start + width > high
        counts = [
            sum(
                count
                for place, count in bins.items()
                if (first or place >= start) and (last or place < start + width)
            )
            for bins in (before, now)
        ]
        label = f"{value_of(kind, start + (width - 1) / 2):.3g}"
        bars.append((label, round(counts[0] / before.total(), 5), round(counts[1] / now.total(), 5)))
    return bars


def _edges(bins: Bins) -> tuple[int, int]:
    """Within which all but one in a hundred lie at either end."""
    total, seen, low = bins.total(), 0, None
    high = 0
    for place in sorted(bins):
        seen += bins[place]
        if low is None and seen > total * 0.01:
            low = place
        high = place
        if seen >= total * 0.99:
            break
    return (low if low is not None else high), high


def _shares(name: Any, before: Bins, now: Bins) -> tuple[float, float]:
    return round(before[name] / before.total(), 5), round(now[name] / now.total(), 5)
