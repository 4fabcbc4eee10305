"""Sketches of parts of an hour are one of the whole, in whatever order they come together."""

from __future__ import annotations

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.drift.hour_sketch import MOST_NAMES, OTHER, HourSketch
from gateway.drift.measures import MEASURES
from tests.examples import examples

NUMBERED = [name for name, kind in MEASURES.items() if kind != "kind"]
COUNTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(NUMBERED), st.integers(-400, 1200)),
        st.tuples(st.just("languages"), st.sampled_from(["en", "de", "none"])),
    ),
    max_size=40,
)


def sketch(counts: list[tuple[str, int | str]]) -> HourSketch:
    made = HourSketch()
    for measure, place in counts:
        made.count(measure, place)
    return made


def together(*parts: HourSketch) -> HourSketch:
    whole = HourSketch()
    for part in parts:
        whole.merge(part)
    return whole


@given(COUNTS, COUNTS, COUNTS)
@settings(max_examples=examples(200))
def test_merging_is_associative_and_knows_no_order(
    one: list[tuple[str, int | str]], two: list[tuple[str, int | str]], three: list[tuple[str, int | str]]
) -> None:
    a, b, c = sketch(one), sketch(two), sketch(three)
    whole = sketch([*one, *two, *three]).to_json()
    assert together(together(a, b), c).to_json() == whole
    assert together(a, together(b, c)).to_json() == whole
    assert together(c, a, b).to_json() == whole


@given(COUNTS)
@settings(max_examples=examples(200))
def test_what_was_kept_is_read_again(counts: list[tuple[str, int | str]]) -> None:
    whole = sketch(counts)
    again = HourSketch.from_json(orjson.loads(orjson.dumps(whole.to_json())))
    assert again.bins == whole.bins


def test_names_are_bounded() -> None:
    whole = sketch([("languages", f"name-{number}") for number in range(100) for _ in range(number + 1)])
    kept = whole.to_json()["languages"]
    assert len(kept) == MOST_NAMES + 1
    assert sum(kept.values()) == 5050 and kept[OTHER] == sum(range(1, 100 - MOST_NAMES + 1))


def test_measures_of_a_later_version_are_left_out() -> None:
    assert HourSketch.from_json({"tomorrow": [1, 2], "seconds": [3, 1]}).bins == {"seconds": {3: 1}}
