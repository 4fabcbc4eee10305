"""One caller's opinion of one answer, and what many say together."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.intervals import wilson


@dataclass(frozen=True, slots=True)
class Feedback:
    """``score`` is from 0 (useless) to 1 (right); ``created`` is Unix time. What is not given is None."""

    tenant: str
    request_id: str
    created: float
    key_id: str
    model: str
    """Who answered; the asked one where nobody did."""
    backend: str
    score: float | None
    label: str | None
    comment: str | None


@dataclass(frozen=True, slots=True)
class Figures:
    """Of a group; bounds of 95 %. ``mean`` and they are None where nobody gave a score."""

    group: tuple[str, ...]
    count: int
    scored: int
    mean: float | None
    low: float | None
    high: float | None


def figures(group: tuple[str, ...], count: int, scored: int, total: float) -> Figures:
    """``total`` is the sum of ``scored`` scores."""
    if not scored:
        return Figures(group, count, 0, None, None, None)
    mean = min(1.0, max(0.0, total / scored))
    low, high = wilson(mean, scored)
    return Figures(group, count, scored, mean, low, high)
