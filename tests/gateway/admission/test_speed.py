from __future__ import annotations

import pytest

from gateway.admission.speed import Average, SpeedEstimator
from gateway.admission.wait_predictor import Forecast, check_in_time
from gateway.engine_load import EngineLoad
from gateway.errors import Overloaded
from gateway.types import TokenEstimate
from tests.gateway.admission.test_pool import Clock

DEMAND = TokenEstimate(prompt=100, expected=50, reserved=200)


def learn(
    speed: SpeedEstimator,
    seconds: float,
    *,
    tokens: int = 150,
    share: float = 0.25,
    first_token: float | None = 0.5,
    completion: int = 51,
) -> None:
    speed.observe(tokens=tokens, share=share, seconds=seconds, first_token=first_token, completion=completion)


def test_nothing_is_predicted_before_anything_finished() -> None:
    speed = SpeedEstimator(Clock())
    assert (speed.throughput, speed.first_token, speed.tokens_per_second) == (None, None, None)
    assert (speed.expected_wait(1000), speed.expected_service(DEMAND)) == (None, None)
    assert speed.expected_wait(0) == 0.0


def test_speeds_follow_from_a_finished_request() -> None:
    speed = SpeedEstimator(Clock())
    learn(speed, 2.5)
    assert speed.first_token == 0.5
    assert speed.tokens_per_second == pytest.approx(25)  # 50 more tokens in 2 s
    assert speed.throughput == pytest.approx(150 / (2.5 * 0.25))
    assert speed.expected_wait(240) == pytest.approx(1.0)
    assert speed.expected_service(DEMAND) == pytest.approx(0.5 + 50 / 25)


def test_the_shortest_waits_do_not_decide_how_far_forecasts_are_off() -> None:
    speed = SpeedEstimator(Clock())
    for _ in range(200):
        speed.observe_wait("pro", 0.1, 0.4)
        speed.observe_wait("pro", 9.9, 9.6)
    assert speed.wait_factor("pro") == pytest.approx(1.0, rel=0.05)


def test_they_converge_to_a_new_speed() -> None:
    speed = SpeedEstimator(Clock())
    learn(speed, 2.5)
    for _ in range(100):
        learn(speed, 10.5)
    assert speed.tokens_per_second == pytest.approx(5, rel=0.01)
    assert speed.throughput == pytest.approx(150 / (10.5 * 0.25), rel=0.01)


def test_a_whole_answer_tells_nothing_of_the_first_token() -> None:
    speed = SpeedEstimator(Clock())
    learn(speed, 2.0, first_token=None, completion=50)
    assert speed.first_token is None
    assert speed.expected_service(DEMAND) == pytest.approx(2.0)


def test_without_usage_the_first_token_is_known_alone() -> None:
    speed = SpeedEstimator(Clock())
    learn(speed, 2.0, completion=0)
    assert speed.tokens_per_second is None
    assert speed.expected_service(DEMAND) == 0.5


def test_old_speeds_are_forgotten() -> None:
    """Else a backend that once was slow would be refused everything that could prove it fast."""
    clock = Clock()
    speed = SpeedEstimator(clock)
    learn(speed, 1000.0)
    clock.now += 31
    assert speed.throughput is None
    assert speed.expected_service(DEMAND) is None
    learn(speed, 2.5)
    assert speed.tokens_per_second == pytest.approx(25)


def test_without_a_limit_there_is_no_throughput() -> None:
    speed = SpeedEstimator(Clock())
    learn(speed, 2.0, share=0.0)
    assert speed.throughput is None


def test_waits_that_were_longer_than_expected_are_expected_to_be_so() -> None:
    clock = Clock()
    speed = SpeedEstimator(clock)
    assert speed.wait_factor("pro") == 1.0
    learn(speed, 2.5)
    speed.observe_wait("pro", 0.0, 1.0)
    speed.observe_wait("pro", 1.0, 1.5)
    speed.observe_wait("free", 1.0, 100.0)
    assert (speed.wait_factor("pro"), speed.wait_factor("free"), speed.wait_factor("other")) == (
        1.5,
        4.0,
        1.0,
    )
    clock.now += 31
    assert speed.wait_factor("free") == 1.0


def test_the_engine_knows_better() -> None:
    clock = Clock()
    speed = SpeedEstimator(clock)
    learn(speed, 2.5)
    speed.update_engine(EngineLoad(running=10, prefill=20.0, decode=50.0))
    assert speed.tokens_per_second == 5.0
    assert speed.expected_service(DEMAND) == pytest.approx(100 / 20 + 50 / 5)
    clock.now += 5.1
    assert speed.engine is None
    assert speed.tokens_per_second == pytest.approx(25)


@pytest.mark.parametrize(
    ("figures", "saturation"),
    [
        (EngineLoad(), 0.0),
        (EngineLoad(waiting=1), 1.0),
        (EngineLoad(running=8, waiting=2, slots=16), 0.625),
        (EngineLoad(running=16, waiting=20, slots=16), 1.0),
        (EngineLoad(running=1, slots=16, kv_usage=0.95), 0.95),
    ],
)
def test_the_engines_saturation(figures: EngineLoad, saturation: float) -> None:
    assert figures.saturation == saturation


def test_the_first_values_count_alike() -> None:
    average = Average(0.1)
    assert not average
    for value in (1.0, 2.0, 3.0):
        average.add(value)
    assert average.value == pytest.approx(2.0)
    for _ in range(100):
        average.add(10.0)
    assert average.value == pytest.approx(10.0, rel=0.01)


@pytest.mark.parametrize(
    ("wait", "service", "left", "code", "retry_after"),
    [
        (0.0, 0.0, None, None, None),
        (5.0, 100.0, None, None, None),
        (5.1, 0.0, None, "predicted_wait_too_long", 1.0),
        (12.0, 0.0, None, "predicted_wait_too_long", 7.0),
        (1.0, 1.0, 2.0, None, None),
        (4.0, 2.0, 3.0, "deadline_unreachable", 3.0),
        (1.0, 2.0, 2.9, "deadline_unreachable", 1.0),
        (3.0, 10.0, 5.0, "deadline_unreachable", 3.0),
        (0.0, 0.0, -0.1, "deadline_unreachable", 1.0),
    ],
)
def test_what_would_be_late_is_refused_at_once(
    wait: float, service: float, left: float | None, code: str | None, retry_after: float | None
) -> None:
    forecast = Forecast(wait, service, in_vain=wait > 5.0, soonest_end=wait + service)
    if code is None:
        check_in_time(forecast, max_wait=5.0, left=left, backend="up")
        return
    with pytest.raises(Overloaded) as refusal:
        check_in_time(forecast, max_wait=5.0, left=left, backend="up")
    assert refusal.value.code == code
    assert refusal.value.retry_after == pytest.approx(retry_after)
    assert "'up'" in refusal.value.message
