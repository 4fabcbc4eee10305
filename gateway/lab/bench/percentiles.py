"""Percentiles of all that was measured: nothing is sampled or put into buckets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SHOWN = (50, 90, 95, 99)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Between the two nearest in proportion, as numpy and vLLM have it. ``ordered`` ascends and is not empty."""
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    # In this form the result never leaves the two, whatever is rounded.
    return (
        ordered[low]
        if ordered[low] == ordered[high]
        else min(ordered[high], ordered[low] + (ordered[high] - ordered[low]) * (place - low))
    )


def described(values: Iterable[float], unit: float = 1000.0) -> dict[str, float] | None:
    """Mean, percentiles, least, most and standard deviation, times ``unit`` (milliseconds of seconds); None of none."""
    ordered = sorted(values)
    if not ordered:
        return None
    count = len(ordered)
    mean = sum(ordered) / count
    spread = (sum((value - mean) ** 2 for value in ordered) / count) ** 0.5
    figures = {
        "mean": mean,
        "std": spread,
        "min": ordered[0],
        **{f"p{percent}": percentile(ordered, percent) for percent in SHOWN},
        "max": ordered[-1],
    }
    return {"count": count, **{name: value * unit for name, value in figures.items()}}
