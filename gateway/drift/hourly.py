"""One hour, judged: every measure of each model and route that was asked in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.drift.bars import Bars
from gateway.drift.detector import Least, Usual, judge
from gateway.drift.hour_sketch import Bins, HourSketch, merged
from gateway.drift.measures import MEASURES, Kind, value_of
from gateway.drift.table import WEEK, WEEKS, FoundDrift, HourRows, Place

LEAST_WEEKS = 2
"""Of the four earlier ones that had something in this hour."""


def judge_hour(rows: HourRows, least: Least, false_alarms: float) -> None:
    now = rows.sketches(rows.hour)
    weeks = [rows.sketches(rows.hour - WEEK * back) for back in range(1, WEEKS + 1)]
    known = rows.usual()
    series = sum(len(measures) for measures in known.values())
    bars = Bars.of(false_alarms, series)
    for place, sketch in now.items():
        before = [week[place] for week in weeks if place in week]
        measures = known.get(place, {})
        if _judge(rows, place, sketch, before, measures, bars, least):
            rows.keep(place, measures)


def _judge(
    rows: HourRows,
    place: Place,
    sketch: HourSketch,
    before: list[HourSketch],
    measures: dict[str, Usual],
    bars: Bars,
    least: Least,
) -> bool:
    """Whether any of ``measures`` was judged; they are changed."""
    judged_any = False
    for measure, kind in MEASURES.items():
        here = sketch.of(measure)
        earlier = [bins for one in before if (bins := one.of(measure))]
        if not here or len(earlier) < LEAST_WEEKS:
            continue
        there = merged(earlier)
        usual = measures.get(measure) or Usual()
        judged = judge(kind, rows.hour, here, there, usual, bars, least)
        if judged is None:
            continue
        measures[measure] = usual
        judged_any = True
        if judged.change == "found":
            facts = {
                "test": usual.why,
                "psi": round(judged.psi, 4),
                "z": round(judged.z, 2),
                **told(kind, here, there),
            }
            rows.begins(FoundDrift(*place, measure, rows.hour, None, facts))
        elif judged.change == "over":
            rows.ends(place, measure)
    return judged_any


def told(kind: Kind, now: Bins, before: Bins) -> dict[str, Any]:
    """Both as one reads them: medians of numbers, shares; of names the one whose share changed most."""
    facts: dict[str, Any] = {"requests": now.total(), "requests_before": before.total()}
    if kind == "kind":
        name = max(now.keys() | before.keys(), key=lambda one: abs(_share(now, one) - _share(before, one)))
        return {**facts, "name": name, "now": _share(now, name), "before": _share(before, name)}
    if kind == "share":
        return {**facts, "now": _share(now, 1), "before": _share(before, 1)}
    return {**facts, "now": median(kind, now), "before": median(kind, before)}


def median(kind: Kind, bins: Mapping[int, int]) -> float | None:
    """None of nothing."""
    half, seen = sum(bins.values()) / 2, 0
    for place in sorted(bins):
        seen += bins[place]
        if seen >= half:
            return float(f"{value_of(kind, place):.4g}")
    return None


def _share(bins: Bins, name: int | str) -> float:
    return round(bins[name] / bins.total(), 5)
