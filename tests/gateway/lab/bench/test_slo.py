from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.lab.bench.errors import OptionError
from gateway.lab.bench.sample import Failure, Sample
from gateway.lab.bench.slo import Slo, parse_slo

bounds = st.floats(0.001, 2.0)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    intended = draw(st.floats(0, 10))
    gaps = draw(st.lists(st.floats(0, 1), max_size=300))
    first = intended + draw(st.floats(0, 2))
    last = first + sum(gaps)
    return Sample(
        0,
        0,
        intended,
        sent=intended,
        first=first,
        last=last,
        end=last,
        gaps=array("d", gaps),
        chunks=len(gaps) + 1,
        output_tokens=len(gaps) + 1,
        failure=Failure("timeout") if draw(st.booleans()) and draw(st.booleans()) else None,
    )


@given(samples(), bounds, bounds, bounds, bounds)
def test_who_meets_it_keeps_every_bound(
    sample: Sample, ttft: float, tpot: float, itl: float, e2e: float
) -> None:
    slo = Slo({"ttft": ttft, "tpot": tpot, "itl": itl, "e2e": e2e})
    late = sorted(gap for gap in sample.gaps if gap > itl)
    kept = {
        "ttft": sample.first is not None and sample.first - sample.intended <= ttft,
        "tpot": sample.tpot is None or sample.tpot <= tpot,
        "itl": 100 * len(late) <= len(sample.gaps),
        "e2e": sample.end - sample.intended <= e2e,
    }
    assert {name: slo.keeps(name, sample) for name in kept} == kept
    assert slo.met(sample) == (sample.ok and all(kept.values()))


@given(samples(), bounds, bounds)
def test_a_wider_bound_is_met_by_whoever_met_a_narrower_one(sample: Sample, one: float, other: float) -> None:
    narrow, wide = sorted((one, other))
    for name in ("ttft", "tpot", "itl", "e2e"):
        assert Slo({name: wide}).met(sample) >= Slo({name: narrow}).met(sample)


def test_tpot_is_not_itl() -> None:
    """Three tokens in two pieces: the mean is by token, the gap by piece."""
    sample = Sample(
        0, 0, 1.0, first=2.0, last=3.0, end=3.5, gaps=array("d", [1.0]), chunks=2, output_tokens=3
    )
    assert (sample.ttft, sample.tpot, sample.e2e) == (1.0, 0.5, 2.5)
    assert Slo({"tpot": 0.5}).met(sample) and not Slo({"itl": 0.9}).met(sample)


def test_what_was_not_streamed_has_no_first_token_and_keeps_its_bound() -> None:
    sample = Sample(0, 0, 0.0, end=1.0, output_tokens=9)
    assert sample.ttft is None and sample.tpot is None
    assert Slo({"ttft": 0.1, "itl": 0.1, "tpot": 0.1}).met(sample)


def test_an_slo_is_read() -> None:
    assert parse_slo("ttft=500ms, itl=50ms,e2e=5s").bounds == {"ttft": 0.5, "itl": 0.05, "e2e": 5.0}
    assert parse_slo(None).bounds == {}


@pytest.mark.parametrize("text", ["ttft", "ttft=5", "tbt=5s", "ttft=1s,ttft=2s", "ttft=1s,", "=1s"])
def test_what_is_no_slo_is_said(text: str) -> None:
    with pytest.raises(OptionError, match="ttft=500ms"):
        parse_slo(text)
