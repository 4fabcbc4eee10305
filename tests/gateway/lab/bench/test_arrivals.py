from __future__ import annotations

import math
from itertools import islice, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.lab.bench.arrivals import Arrivals, Rate, parse_arrivals, parse_rate
from gateway.lab.bench.errors import OptionError

KINDS = ("poisson", "constant", "gamma:0.3", "gamma:4", "burst:8")
some_rates = st.floats(0.01, 1e4)


@given(st.sampled_from(KINDS), st.integers(), some_rates)
def test_times_never_fall_and_are_the_same_for_the_same_seed(kind: str, seed: int, rate: float) -> None:
    arrivals = parse_arrivals(kind)
    once, again = (list(islice(arrivals.times(Rate.constant(rate), Random(seed)), 200)) for _ in range(2))
    assert once == again == sorted(once)
    assert once[0] >= 0


@given(st.sampled_from(KINDS), st.integers(), some_rates, some_rates)
def test_a_rate_only_stretches_what_a_seed_drew(kind: str, seed: int, slow: float, fast: float) -> None:
    arrivals = parse_arrivals(kind)
    at_slow, at_fast = (
        list(islice(arrivals.times(Rate.constant(rate), Random(seed)), 50)) for rate in (slow, fast)
    )
    assert [at * slow for at in at_slow] == pytest.approx([at * fast for at in at_fast])


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_is_the_rate(kind: str) -> None:
    times = list(islice(parse_arrivals(kind).times(Rate.constant(50), Random(1)), 40_000))
    assert len(times) / times[-1] == pytest.approx(50, rel=0.05)


@pytest.mark.parametrize(
    ("kind", "variation"), [("poisson", 1.0), ("gamma:0.25", 2.0), ("gamma:4", 0.5), ("constant", 0)]
)
def test_gaps_vary_as_the_kind_says(kind: str, variation: float) -> None:
    """The coefficient of variation of a gamma distribution of shape k is 1/√k."""
    times = list(islice(parse_arrivals(kind).times(Rate.constant(1), Random(2)), 40_000))
    gaps = [later - sooner for sooner, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert spread / mean == pytest.approx(variation, rel=0.05)


def test_bursts_come_together() -> None:
    times = list(islice(parse_arrivals("burst:5").times(Rate.constant(10), Random(3)), 50))
    assert [times[place] for place in range(0, 50, 5)] == sorted(set(times))
    assert all(times[place] == times[place - place % 5] for place in range(50))


ramps = st.builds(Rate, st.floats(0, 100), st.floats(0, 100), st.floats(0.1, 100)).filter(
    lambda rate: rate.first + rate.last > 0.1
)


@given(st.one_of(ramps, some_rates.map(Rate.constant)), st.floats(0, 1000))
def test_when_is_the_inverse_of_expected(rate: Rate, expected: float) -> None:
    at = rate.when(expected)
    if at == math.inf:
        assert rate.last == 0 and expected >= rate.expected(rate.span)
    else:
        assert rate.expected(at) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(ramps)
def test_a_ramp_has_on_average_the_mean_of_its_ends(rate: Rate) -> None:
    assert rate.expected(rate.span) == pytest.approx(rate.span * (rate.first + rate.last) / 2)


def test_a_ramp_goes_on_at_its_last_rate_and_one_to_nothing_ends() -> None:
    up = list(islice(Arrivals("constant", 1).times(Rate(0, 10, 2), Random(0)), 31))
    assert up[10] == pytest.approx(2.0) and up[30] == pytest.approx(4.0)
    down = list(Arrivals("constant", 1).times(Rate(10, 0, 2), Random(0)))
    assert len(down) in (10, 11) and down[-1] <= 2.0


@pytest.mark.parametrize(
    "text", ["", "often", "gamma", "gamma:x", "gamma:0", "burst:0", "burst:1.5", "poisson:2"]
)
def test_arrivals_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match="burst:SIZE"):
        parse_arrivals(text)


@pytest.mark.parametrize("text", ["", "0", "-1", "fast", "nan", "1-x", "0-0", "inf"])
def test_rates_that_are_none(text: str) -> None:
    with pytest.raises(OptionError, match="requests a second"):
        parse_rate(text, 10.0)


def test_a_ramp_needs_its_time() -> None:
    with pytest.raises(OptionError, match="--duration"):
        parse_rate("1-20", None)
    assert parse_rate("1-20", 30.0) == Rate(1, 20, 30.0)
