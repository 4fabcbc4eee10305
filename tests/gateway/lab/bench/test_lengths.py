from __future__ import annotations

import statistics
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.lab.bench.errors import OptionError
from gateway.lab.bench.lengths import parse_lengths


def drawn(text: str, count: int = 5000) -> list[int]:
    lengths, random = parse_lengths(text, "--prompt-tokens"), Random(1)
    return [lengths.draw(random) for _ in range(count)]


@given(st.integers(1, 10_000_000))
def test_a_number_is_that_number(number: int) -> None:
    assert set(drawn(str(number), 3)) == set(drawn(f"fixed:{number}", 3)) == {number}


def test_a_uniform_one_has_both_ends_and_nothing_beyond() -> None:
    assert set(drawn("uniform:3-6")) == {3, 4, 5, 6}


def test_a_log_normal_one_has_its_median_and_its_bound() -> None:
    found = drawn("lognormal:300,1.0,2000")
    assert statistics.median(found) == pytest.approx(300, rel=0.05)
    assert max(found) == 2000 and min(found) >= 1
    # A share of 15.9 % is more than one sigma above.
    assert sum(length > 300 * 2.71828 for length in found) / 5000 == pytest.approx(0.159, abs=0.02)


@pytest.mark.parametrize(
    "text",
    ["", "0", "-3", "x", "uniform:9", "uniform:9-3", "lognormal:300", "lognormal:1,2,3,4", "normal:3", "1e9"],
)
def test_what_is_no_length_is_said(text: str) -> None:
    with pytest.raises(OptionError, match="--output-tokens"):
        parse_lengths(text, "--output-tokens")
