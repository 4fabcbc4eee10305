"""One measure, hour by hour: what is found, how soon, and what is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import orjson
import pytest

from gateway.drift.bars import Bars
from gateway.drift.detector import OVER_AFTER, Judged, Least, Usual, judge
from gateway.drift.measures import Kind
from gateway.drift.moments import WEEK, Excess, Moments, sum_scale
from tests.drifts import settled

BARS, LEAST = Bars.of(1.0, 100), Least(100, 0.02)
SETTLED = 2 * WEEK
"""Judged hours from which a drift can be found."""


def numbers(draw: Random, mean: float, count: int = 250) -> Counter[int]:
    return Counter(round(draw.gauss(mean, 20.0)) for _ in range(count))


def told(
    hours: int, mean: Callable[[int], float], *, kind: Kind = "number", weather: float = 0.0, seed: int = 1
) -> list[tuple[int, str, str]]:
    """When what was found or over, and by which test. ``weather``: by how much whole hours are off."""
    draw, usual, changes = Random(seed), Usual(), []
    off = 0.0
    for hour in range(1, hours + 1):
        off = 0.7 * off + draw.gauss(0, weather)
        why = usual.why
        judged = judge(
            kind, hour, numbers(draw, mean(hour) + off), numbers(draw, 0.0, 1000), usual, BARS, LEAST
        )
        assert judged is not None
        if judged.change:
            changes.append((hour, judged.change, usual.why or why))
    return changes


@pytest.mark.parametrize("weather", [0.0, 4.0])
def test_where_nothing_changes_nothing_is_told(weather: float) -> None:
    assert told(SETTLED + 400, lambda hour: 0.0, weather=weather) == []


def test_another_distribution_is_found_within_hours() -> None:
    [(hour, change, why)] = told(SETTLED + 20, lambda hour: 12.0 if hour > SETTLED else 0.0)
    assert (change, why) == ("found", "psi") and hour - SETTLED <= 4


def test_a_creeping_mean_is_found_by_its_sum() -> None:
    # A thousandth of a standard deviation more each hour.
    changes = told(SETTLED + 300, lambda hour: max(0, hour - SETTLED) * 0.02)
    assert [change for _, change, _ in changes] == ["found"]
    assert changes[0][2] == "cusum"


def test_one_odd_hour_is_no_drift() -> None:
    assert told(SETTLED + 50, lambda hour: 60.0 if hour == SETTLED + 10 else 0.0) == []


def test_a_drift_is_over_a_day_after_the_last_sign_of_it() -> None:
    changes = told(SETTLED + 120, lambda hour: 15.0 if SETTLED < hour <= SETTLED + 10 else 0.0)
    assert [change for _, change, _ in changes] == ["found", "over"]
    assert changes[1][0] >= SETTLED + 10 + OVER_AFTER


def test_before_it_is_known_what_is_usual_nothing_is_told() -> None:
    assert told(SETTLED - 2, lambda hour: 40.0) == []


def judged(kind: Kind, now: Counter[object], before: Counter[object], usual: Usual) -> Judged | None:
    return judge(kind, 1, now, before, usual, BARS, LEAST)


def test_hours_with_few_requests_are_not_judged() -> None:
    usual = settled()
    usual.over = 1
    assert judged("share", Counter({0: 99}), Counter({0: 900}), usual) is None
    assert judged("share", Counter({0: 100}), Counter({0: 199}), usual) is None
    assert usual.over == 0


def test_a_mix_of_languages_has_no_mean() -> None:
    usual = settled()
    before = Counter[object]({"en": 950, "pt": 50})
    changes = [judged("kind", Counter({"en": 170, "pt": 30}), before, usual) for _ in range(2)]
    assert [one.change for one in changes if one] == ["", "found"]
    assert (usual.up, usual.down) == (0.0, 0.0)


def test_what_differs_little_is_not_told_however_sure_it_is() -> None:
    usual = settled()
    before = Counter[object](dict.fromkeys(range(10), 10**6))
    now = Counter[object]({**dict.fromkeys(range(10), 10**6), 3: 1_050_000})
    assert [one.change for _ in range(3) if (one := judged("position", now, before, usual))][:2] == ["", ""]


def test_values_that_are_all_one_say_nothing() -> None:
    assert judged("number", Counter({7: 200}), Counter({7: 900}), settled()) is None


def test_what_is_known_is_kept() -> None:
    usual = settled()
    draw = Random(5)
    for hour in range(5):
        judge("number", hour, numbers(draw, 30.0), numbers(draw, 0.0, 1000), usual, BARS, LEAST)
    again = Usual.from_json(orjson.loads(orjson.dumps(usual.to_json())))
    assert usual.since and usual.up
    assert again.to_json() == usual.to_json()


def test_a_change_is_usual_only_weeks_later() -> None:
    moments = Moments([1.0, 3.0, 1.0])
    for _ in range(WEEK):
        moments.add(1.0)
    assert moments.mean == 1.0
    for _ in range(WEEK - 1):
        moments.add(9.0)
    assert moments.mean == 1.0
    moments.add(9.0)
    assert moments.mean == 5.0  # of two weeks the second is half


def test_sums_of_hours_that_go_together_spread_wider() -> None:
    draw, moments, value = Random(4), Moments([0.0, 1.0, 0.0]), 0.0
    for _ in range(20 * WEEK):
        value = 0.6 * value + draw.gauss(0, 0.8)
        moments.add(value)
    assert moments.correlation == pytest.approx(0.6, abs=0.15)
    assert sum_scale(moments) == pytest.approx(2.0, rel=0.25)


def test_hours_that_differ_by_themselves_are_told_from_chance() -> None:
    draw, excess = Random(6), Excess()
    for _ in range(8 * WEEK):
        weight = draw.choice([100.0, 1000.0])
        excess.add(draw.gauss(0, (1 + weight * 0.002) ** 0.5) ** 2, weight)
    assert excess.known == pytest.approx(0.002, rel=0.3)
    assert excess.mean(1000.0) == pytest.approx(3.0, rel=0.25)
