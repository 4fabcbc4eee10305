"""Plots as inline SVG, drawn here: a report is one file that needs nothing else, now or in ten years."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 44
DECADES = 7
MOST_POINTS = 3000
"""Of a series; more are thinned out, the highest kept."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A line through its points, or, ``scattered``, the points."""

    name: str
    points: Sequence[Point]
    scattered: bool = False
    color: int = 0
    """Its number among the colours of the page."""


@dataclass(frozen=True)
class Axis:
    """``place`` makes of a value what is even on the paper; ``ticks`` are its values and their names."""

    label: str
    place: Callable[[float], float]
    low: float
    high: float
    ticks: Sequence[tuple[float, str]]

    def share(self, value: float) -> float:
        low, high = self.place(self.low), self.place(self.high)
        return (self.place(value) - low) / (high - low) if high > low else 0.5


def linear(label: str, values: Sequence[float]) -> Axis:
    """From nothing to a round number above the highest."""
    high = max(values, default=0.0)
    step = _round_up((high if high > 0 else 1.0) / 5)
    count = max(1, math.ceil(high / step - 1e-9))
    ticks = [float(f"{step * number:.10g}") for number in range(count + 1)]
    return Axis(label, float, 0.0, ticks[-1], [(tick, f"{tick:,g}") for tick in ticks])


def logarithmic(label: str, values: Sequence[float]) -> Axis:
    """Over the powers of ten about the values that are above nothing; what is below ``DECADES`` of them lies at their
    foot."""
    positive = [value for value in values if value > 0]
    high = math.ceil(math.log10(max(positive, default=10.0)))
    low = min(high - 1, max(high - DECADES, math.floor(math.log10(min(positive, default=1.0)))))
    ticks = [(10.0**power, f"{10.0**power:,g}") for power in range(low, high + 1)]
    return Axis(label, lambda value: math.log10(max(value, 10.0**low)), 10.0**low, 10.0**high, ticks)


def nines(label: str) -> Axis:
    """Percentiles, each nine as wide as the one before, so that a tail is seen."""
    ticks = [(0.0, "0"), (50.0, "50"), (90.0, "90"), (99.0, "99"), (99.9, "99.9")]
    return Axis(label, lambda percent: -math.log10(1 - min(percent, 99.95) / 100), 0.0, 99.95, ticks)


@dataclass(frozen=True)
class Chart:
    """Marks are lines across at these values of y (or, ``x_marks``, of x), with their names."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    marks: Sequence[tuple[float, str]] = ()
    x_marks: Sequence[tuple[float, str]] = field(default=())

    def svg(self) -> str:
        return "".join(self._parts())

    def _parts(self) -> Iterator[str]:
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        yield f"<figure><figcaption>{escape(self.title)}</figcaption>"
        yield f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">'
        for value, name in self.y.ticks:
            y = self._y(value)
            yield f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>'
            yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(name)}</text>'
        for value, name in self.x.ticks:
            x = self._x(value)
            yield f'<path class="grid" d="M{x:.1f} {TOP}V{bottom}"/>'
            yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(name)}</text>'
        middle = (LEFT + right) / 2
        yield f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(self.x.label)}</text>'
        turned = f"translate(13 {(TOP + bottom) / 2}) rotate(-90)"
        yield f'<text transform="{turned}" text-anchor="middle">{escape(self.y.label)}</text>'
        for value, name in self.marks:
            if self.y.low <= value <= self.y.high:
                y = self._y(value)
                yield f'<path class="mark" d="M{LEFT} {y:.1f}H{right}"/>'
                yield f'<text x="{right - 4}" y="{y - 4:.1f}" text-anchor="end">{escape(name)}</text>'
        for value, name in self.x_marks:
            if self.x.low <= value <= self.x.high:
                x = self._x(value)
                yield f'<path class="mark" d="M{x:.1f} {TOP}V{bottom}"/>'
                yield f'<text x="{x - 4:.1f}" y="{bottom - 6}" text-anchor="end">{escape(name)}</text>'
        for one in self.series:
            yield from self._drawn(one)
        yield "</svg>"
        if len(self.series) > 1:
            yield "<p class=legend>"
            yield " ".join(f'<span class="c{one.color}">{escape(one.name)}</span>' for one in self.series)
            yield "</p>"
        yield "</figure>"

    def _drawn(self, one: Series) -> Iterator[str]:
        places = [(self._x(x), self._y(y)) for x, y in thinned(one.points)]
        if one.scattered:
            # Lines of no length with round ends: dots, in one element.
            path = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)
            yield f'<path class="dots c{one.color}" d="{path}"/>'
            return
        path = " ".join(f"{x:.1f} {y:.1f}" for x, y in places)
        if path:
            yield f'<path class="line c{one.color}" d="M{path}"><title>{escape(one.name)}</title></path>'
        if len(places) <= 20:
            dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)
            yield f'<path class="knots c{one.color}" d="{dots}"/>'

    def _x(self, value: float) -> float:
        return LEFT + self.x.share(value) * (WIDTH - LEFT - RIGHT)

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - self.y.share(value) * (HEIGHT - TOP - BOTTOM)


@dataclass(frozen=True)
class Bars:
    """One lying bar for each value, from nothing on, with its name above it."""

    title: str
    rows: Sequence[tuple[str, float]]

    def svg(self) -> str:
        most = max((value for _, value in self.rows), default=0.0) or 1.0
        height = 38 * len(self.rows) + 8
        parts = [
            f"<figure><figcaption>{escape(self.title)}</figcaption>",
            f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(self.title)}">',
        ]
        for number, (name, value) in enumerate(self.rows):
            top = 38 * number
            told = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
            parts.append(f'<text x="0" y="{top + 14}">{escape(name)}: {told}</text>')
            parts.append(f'<path class="bar c0" d="M0 {top + 19}h{WIDTH * value / most:.1f}v12H0Z"/>')
        return "".join([*parts, "</svg></figure>"])


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> Sequence[Point]:
    """At most about so many: of each group of neighbours the highest and the lowest."""
    if len(points) <= most:
        return points
    size = math.ceil(2 * len(points) / most)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        group = points[start : start + size]
        low, high = min(group, key=lambda point: point[1]), max(group, key=lambda point: point[1])
        kept += sorted({low, high})
    return kept


def _round_up(value: float) -> float:
    """To 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1.0, 2.0, 2.5, 5.0, 10.0) if step * power >= value * (1 - 1e-9))
