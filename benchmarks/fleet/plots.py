"""The pictures of docs/scale.md: SVG files that a page shows as they are, in light and in dark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from gateway.lab.charts import HEIGHT, WIDTH, Axis, Chart, Series
from gateway.lab.page import STYLE

FOLDER = Path(__file__).parents[2] / "docs" / "images"
_ROW = 18
"""Height of a line of the legend."""
_HEAD = 24
_WIDE = WIDTH + 12
"""So that the last number below the axis is whole."""


def picture(
    title: str, x: Axis, y: Axis, series: Sequence[Series], marks: Sequence[tuple[float, str]] = ()
) -> str:
    """An SVG file: the chart, its title above, its legend below."""
    drawn = Chart(title, x, y, series, marks).svg()
    inner = re.sub(r"^.*?<svg[^>]*>|</svg>.*$", "", drawn, flags=re.DOTALL)
    names = "".join(_named(number, one) for number, one in enumerate(series))
    height = HEIGHT + _HEAD + _ROW * -(-len(series) // 2) + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {height}" width="{_WIDE}" height="{height}" '
        f'role="img" aria-label="{escape(title)}"><style>{_style()}</style>'
        f'<rect width="100%" height="100%" rx="6" class="paper"/>'
        f'<text x="14" y="17" class="title">{escape(title)}</text>'
        f'<g transform="translate(0 {_HEAD})">{inner}</g>{names}</svg>\n'
    )


def _named(number: int, one: Series) -> str:
    """A line of the legend, two to a row."""
    x, y = 62 + 250 * (number % 2), HEIGHT + _HEAD + 14 + _ROW * (number // 2)
    return f'<path class="line c{one.color}" d="M{x} {y}h18"/><text x="{x + 24}" y="{y + 4}">{escape(one.name)}</text>'


def write(name: str, content: str) -> Path:
    path = FOLDER / f"{name}.svg"
    path.write_text(content)
    return path


def _style() -> str:
    """Of the lab's reports: colours, and what charts have."""
    kept = [
        line
        for line in STYLE.strip().splitlines()
        if not re.match(r"body|h1|th|\.scroll|\.legend|pre|background|margin|figure", line)
    ]
    found = "".join(kept).replace("svg{width:100%;height:auto;display:block}", "")
    return found + ".paper{fill:var(--paper)}.title{fill:var(--ink);font-weight:600;font-size:12px}"
