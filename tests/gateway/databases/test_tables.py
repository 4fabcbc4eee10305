"""What is kept by the hour and day is what the rows say, to the nano-dollar."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.databases.tables import DAY, HALF, HOUR, REQUESTS, SPENDINGS, Row, sums_of

moments = st.floats(0, 4e9)
costs = st.integers(0, 2**62)
names = st.sampled_from(["a", "b"])


@st.composite
def requests(draw: st.DrawFn) -> Row:
    values = dict.fromkeys(REQUESTS, 0) | {"tenant": draw(names), "created": draw(moments), "error": None}
    values |= {"cost_nanodollars": draw(costs), "prompt_tokens": draw(costs), "answered_model": draw(names)}
    return tuple({**values, "status": draw(st.sampled_from([200, 503]))}.values())


@st.composite
def spendings(draw: st.DrawFn) -> Row:
    values = dict.fromkeys(SPENDINGS, 0) | {"tenant": draw(names), "created": draw(moments)}
    return tuple({**values, "cost_nanodollars": draw(costs), "prompt_tokens": draw(costs)}.values())


@given(st.lists(requests(), max_size=20), st.lists(spendings(), max_size=20))
def test_sums_are_exact(asked: list[Row], spent: list[Row]) -> None:
    columns = [(row, list(REQUESTS)) for row in asked] + [(row, list(SPENDINGS)) for row in spent]
    wanted = [
        sum(int(row[names.index(name)] or 0) for row, names in columns)
        for name in ("cost_nanodollars", "prompt_tokens")
    ]
    for length, sums in zip((HOUR, DAY), sums_of(asked, spent), strict=True):
        # A row: start, seven keys, three counts, five kinds of tokens, and the two halves of the cost.
        assert sum((int(row[-2] or 0) << HALF) + int(row[-1] or 0) for row in sums) == wanted[0]
        assert sum(int(row[11] or 0) for row in sums) == wanted[1]
        assert sum(int(row[8] or 0) for row in sums) == len(asked)
        assert sum(int(row[9] or 0) for row in sums) == sum(row[9] == 503 for row in asked)
        starts = {int(float(row[names.index("created")] or 0) // length) * length for row, names in columns}
        assert {row[0] for row in sums} == starts
        assert [row[:8] for row in sums] == sorted({row[:8] for row in sums}), "each once, in order"
