from __future__ import annotations

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from gateway.lab.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    Series,
    linear,
    logarithmic,
    nines,
    thinned,
)

points = st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e7)), min_size=1, max_size=60)


@given(points, st.booleans(), st.booleans())
def test_what_is_drawn_lies_within_the_axes(
    found: list[tuple[float, float]], scattered: bool, by_powers: bool
) -> None:
    xs, ys = zip(*found, strict=True)
    y = (logarithmic if by_powers else linear)("ms", ys)
    chart = Chart(
        "a <b>", linear("s", xs), y, [Series("one & two", found, scattered), Series("x", [])], [(1.0, "<")]
    )
    drawn = ElementTree.fromstring(chart.svg().replace("class=legend", 'class="legend"'))
    for path in drawn.iter("path"):
        for x, y_ in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path.attrib["d"]):
            assert LEFT - 0.1 <= float(x) <= WIDTH - RIGHT + 0.1
            assert TOP - 0.1 <= float(y_) <= HEIGHT - BOTTOM + 0.1


@given(st.lists(st.floats(0, 1e9)))
def test_axes_have_all_values_and_rising_ticks(values: list[float]) -> None:
    for axis in (linear("", values), logarithmic("", values)):
        ticks = [tick for tick, _ in axis.ticks]
        assert ticks == sorted(set(ticks)) and 2 <= len(ticks) <= 20
        assert all(-1e-9 <= axis.share(value) <= 1 + 1e-9 for value in values)


def test_each_nine_is_as_wide_as_the_one_before() -> None:
    axis = nines("")
    widths = [axis.share(high) - axis.share(low) for low, high in ((0, 90), (90, 99), (99, 99.9))]
    assert max(widths) - min(widths) < 1e-9
    assert axis.share(100) == 1.0


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=400))
def test_thinning_keeps_the_highest(found: list[tuple[float, float]]) -> None:
    kept = thinned(found, 50)
    assert set(kept) <= set(found) and len(kept) <= 50 + 2
    assert max(y for _, y in kept) == max(y for _, y in found)
