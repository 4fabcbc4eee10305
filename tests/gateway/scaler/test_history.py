"""A forecast of demand, on clocks of the test's own."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.scaler.history import DAY, KEPT, SLOT, WEEK, History, Lead, dumps, loads

BEGAN = 1_800_000_000 // (WEEK * SLOT) * WEEK * SLOT
"""A multiple of a week, so that slots count from 0."""


def office_hours(slot: int) -> float:
    """20 requests from 9 to 17, 2 otherwise."""
    return 20.0 if 9 * 12 <= slot % DAY < 17 * 12 else 2.0


def after(days: float, demand=office_hours) -> tuple[History, float]:  # type: ignore[no-untyped-def]
    history, slots = History(), round(days * DAY)
    for slot in range(slots + 1):  # the sample of the last begins it
        history.add(BEGAN + slot * SLOT, demand(slot))
    return history, BEGAN + slots * SLOT


def test_nothing_is_foretold_of_the_first_day() -> None:
    assert History().forecast(BEGAN, 300) is None
    history, now = after(0.9)
    assert history.forecast(now, 600) is None


@pytest.mark.parametrize("days", [1, 3, 8, 15])
def test_the_morning_is_seen_coming(days: int) -> None:
    history, now = after(days + 8.9 / 24)
    assert history.forecast(now, 1200) == pytest.approx(20, rel=0.1)
    assert history.forecast(now - 3 * 3600, 1200) == pytest.approx(2, rel=0.1)


def test_a_day_that_is_twice_as_busy_stays_so() -> None:
    history, now = after(10.5, lambda slot: office_hours(slot) * (2 if slot > 10 * DAY else 1))
    assert history.forecast(now, 300) == pytest.approx(40, rel=0.1)


def test_another_day_of_the_week_is_another_day() -> None:
    """Weekends are quiet: once there was one, the next Saturday is as that."""
    history, now = after(12 + 8.9 / 24, lambda slot: office_hours(slot) if slot // DAY % 7 < 5 else 1.0)
    assert history.forecast(now, 1200) == pytest.approx(1, abs=0.1)


def test_what_was_underrated_gets_a_margin() -> None:
    """Each peak is half as high again as it was a week before."""
    history, now = History(), 0.0
    for slot in range(3 * WEEK + 10 * 12):
        now = BEGAN + slot * SLOT
        history.forecast(now, 300)
        history.add(now, 10 * 1.5 ** (slot // WEEK))
    # What is foretold follows the last half hour anyway; the margin covers most of what that got wrong.
    assert (history.forecast(now, 300) or 0) >= 10 * 1.5**3


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.floats(0, 1e5))
def test_a_forecast_is_a_finite_amount_and_what_is_kept_comes_back(demands: list[float], lead: float) -> None:
    history = History()
    for number, demand in enumerate(demands):
        history.add(BEGAN + number * DAY * SLOT / 4, demand)
        history.add(BEGAN + number * DAY * SLOT / 4 + SLOT, demand / 2)
    now = BEGAN + len(demands) * DAY * SLOT / 4
    foretold = history.forecast(now, lead)
    assert foretold is None or 0 <= foretold < math.inf
    back = loads(dumps([("a", history)]))["a"]
    assert back.means.keys() == history.means.keys()
    assert all(back.means[slot] == pytest.approx(mean, abs=0.001) for slot, mean in history.means.items())


def test_four_weeks_are_kept() -> None:
    history, _ = after(40)
    assert KEPT <= len(history.means) < KEPT + DAY


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b'{"version": 2, "histories": {}}',
        b'{"version": 1, "histories": {"a": {}}}',
        b'{"version": 1, "histories": {"a": {"means": {"x": 1}, "errors": []}}}',
        b'{"version": 1, "histories": {"a": {"means": {"1": NaN}, "errors": []}}}',
    ],
)
def test_a_file_that_is_none_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        loads(text)


def test_the_time_a_new_engine_takes_is_measured() -> None:
    lead = Lead(180)
    lead.note(0, ready=1, wanted=1)
    lead.note(10, ready=1, wanted=2)
    lead.note(100, ready=1, wanted=2)
    assert lead.seconds == 180
    lead.note(130, ready=2, wanted=2)
    assert lead.seconds == 120
    lead.note(200, ready=2, wanted=3)
    lead.note(210, ready=2, wanted=2)  # not needed after all
    lead.note(900, ready=3, wanted=3)
    assert lead.seconds == 120


def test_a_clock_that_jumps_is_no_time_that_an_engine_takes() -> None:
    lead = Lead(180)
    for now in (0.0, 1e9):
        lead.note(now, ready=1, wanted=2)
    lead.note(2e9, ready=2, wanted=3)
    lead.note(5.0, ready=3, wanted=3)
    assert lead.seconds == 180
