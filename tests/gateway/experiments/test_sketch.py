from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.experiments.sketch import ERROR, Sketch, bin_of, bins_of
from tests.examples import examples

values = st.lists(st.floats(1e-5, 1e6), min_size=1, max_size=200)


@given(values, st.sampled_from([0.0, 0.5, 0.95, 1.0]))
@settings(max_examples=examples(200))
def test_a_quantile_is_within_its_error(given_: list[float], share: float) -> None:
    sketch = Sketch()
    for value in given_:
        sketch.add(value)
    exact = sorted(given_)[int(share * (len(given_) - 1))]
    assert sketch.quantile(share) == pytest.approx(exact, rel=ERROR * 1.01)


@given(values, values)
@settings(max_examples=examples(50))
def test_two_merged_are_one_of_all_values_and_survive_being_written(
    one: list[float], other: list[float]
) -> None:
    both, first, second = Sketch(), Sketch(), Sketch()
    for value in one:
        both.add(value)
        first.add(value)
    for value in other:
        both.add(value)
        second.add(value)
    first.merge(second)
    assert Sketch.from_json(orjson.loads(orjson.dumps(first.to_json()))).bins == both.bins


def test_what_is_above_a_quantile_is_counted() -> None:
    sketch = Sketch()
    for number in range(1, 101):
        sketch.add(number)
    at = sketch.bin_at(0.95)
    assert at is not None
    assert 3 <= sketch.above(at) <= 5
    assert bin_of(0.0) == bin_of(1e-9)
    assert bin_of(2.0) - bin_of(1.0) == pytest.approx(bins_of(2.0), abs=1)


def test_nothing_has_no_quantile() -> None:
    assert Sketch().quantile(0.5) is None
