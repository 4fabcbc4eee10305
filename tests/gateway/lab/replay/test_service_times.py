"""How long backends take, as measured on a trace."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from gateway.lab.replay.errors import ReplayError
from gateway.lab.replay.service_times import Services, ServiceTimes, least_squares, parse_service
from gateway.lab.replay.survey import survey
from gateway.recording.recorded_request import RecordedRequest

TRUE = ServiceTimes(first=0.15, prompt=0.0002, first_load=0.004, token=0.012, token_load=0.0005)


def test_what_made_a_trace_is_found_in_it_again(tmp_path: Path) -> None:
    random, at, ends = Random(1), 1_764_590_400.0, list[float]()
    rows: list[RecordedRequest] = []
    for number in range(600):
        at += random.expovariate(4.0)
        ends = [end for end in ends if end > at]
        prompt, tokens, load = random.randrange(10, 3000), random.randrange(2, 400), len(ends)
        waited = 5.0 if number % 20 == 0 else 0.0  # in a queue: no time of the backend's
        ttft = waited + TRUE.to_first(prompt, load) * random.uniform(0.97, 1.03)
        duration = ttft + TRUE.between(load) * (tokens - 1)
        ends.append(at + duration)
        rows.append(
            RecordedRequest(at, backend="b", target="m", model="chat", stream=True, prompt_tokens=prompt,
                            completion_tokens=tokens, ttft=ttft, duration=duration)
        )  # fmt: skip
    path = tmp_path / "trace.jsonl"
    path.write_bytes(b"\n".join(row.to_json() for row in rows))
    found = survey(path, None)
    times = found.measured["b", "m"]
    assert times.first == pytest.approx(TRUE.first, abs=0.03)
    assert times.prompt == pytest.approx(TRUE.prompt, rel=0.05)
    assert times.first_load == pytest.approx(TRUE.first_load, rel=0.2)
    assert times.token == pytest.approx(TRUE.token, rel=0.02)
    assert times.token_load == pytest.approx(TRUE.token_load, rel=0.05)
    services = Services({}, found.measured, found.overall)
    assert services.of("elsewhere", "m")[1].startswith("of the same model elsewhere")
    assert services.of("other", "model")[1].startswith("of all backends")
    assert Services({}, {}, None).of("b", "m")[1].startswith("a guess")


def test_no_coefficient_is_below_nothing() -> None:
    rows = [(1.0, float(x), float(x)) for x in range(10)]  # the last depends on the one before
    assert least_squares(rows, [3.0 - 0.1 * x for x in range(10)]) == pytest.approx([2.55, 0.0, 0.0])
    assert least_squares(rows, [1.0 + 2.0 * x for x in range(10)]) == pytest.approx([1.0, 2.0, 0.0])


def test_times_that_are_given() -> None:
    name, times = parse_service("openai:first=300ms,prompt=50us,token=12ms")
    assert name == "openai"
    assert (times.to_first(1000, 5), times.between(5)) == pytest.approx((0.35, 0.012))
    assert parse_service("token=1s")[0] == ""
    with pytest.raises(ReplayError, match="should be one of first, prompt"):
        parse_service("openai:speed=1s")
