from __future__ import annotations

import asyncio
import time
from bisect import bisect_left

import pytest
from prometheus_client import generate_latest

from gateway import errors
from gateway.observe.metrics import Metrics
from gateway.observe.outcome import outcome_of
from gateway.observe.prometheus import buckets, buffers
from gateway.observe.prometheus.rendering import SAMPLES_AT_ONCE


def test_what_is_counted_is_rendered() -> None:
    metrics = Metrics()
    metrics.requests.labels("m", "up", "200").inc()
    metrics.tokens.labels("m", "in", "answer").inc(7)
    body = metrics.render()
    assert b'tollgate_requests_total{backend="up",model="m",status="200"} 1.0' in body
    assert b'tollgate_tokens_total{direction="in",model="m",purpose="answer"} 7.0' in body


@pytest.mark.parametrize("tenants", [True, False])
def test_tenants_are_told_where_the_operator_wants_it(tenants: bool) -> None:
    metrics = Metrics(tenants=tenants)
    metrics.cost.labels(metrics.tenant("acme"), "m", "answer").inc()
    assert (b"acme" in metrics.render()) == tenants


@pytest.mark.anyio
async def test_a_computation_that_does_not_pause_is_seen() -> None:
    metrics = Metrics()
    watching = asyncio.create_task(metrics.watch_lag())
    await asyncio.sleep(0.05)
    before = sum(metrics._loop_lag.counts)
    time.sleep(0.15)  # noqa: ASYNC251
    await asyncio.sleep(0.05)
    watching.cancel()
    assert before >= 1
    assert sum(metrics._loop_lag.counts[bisect_left(buckets.LAG, 0.1) + 1 :]) >= 1


def test_each_has_its_own() -> None:
    one, other = Metrics(), Metrics()
    one.policy_errors.inc()
    assert b"tollgate_policy_errors_total 1.0" in one.render()
    assert b"tollgate_policy_errors_total 0.0" in other.render()


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.RateLimited("x"), 429, "rate_limit_exceeded"),
        (errors.UpstreamFailed("x", code="upstream_cut"), 502, "upstream_cut"),
        (errors.Rejected("x", status=422, type=None, param=None, code=None), 422, None),
        (asyncio.CancelledError(), 499, "client_left"),
        (GeneratorExit(), 499, "client_left"),
        (ValueError("x"), 500, "internal_error"),
        (KeyboardInterrupt(), 500, "internal_error"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_outcomes(error: BaseException, status: int, code: str | None) -> None:
    assert outcome_of(error) == (status, code)


def test_slices_are_what_prometheus_client_renders() -> None:
    metrics = Metrics()
    for number in range(300):
        metrics.tokens.labels(f"model-{number}", "in", "answer").inc(number)
        metrics.seconds.labels(f"model-{number}").observe(0.1)
    slices = list(metrics.slices())
    whole = generate_latest(metrics._registry)
    assert sorted(b"".join(slices).splitlines()) == sorted(whole.splitlines())
    assert b"_created" not in whole
    assert max(part.count(b"\n") for part in slices) <= SAMPLES_AT_ONCE + 2


def test_the_number_of_series_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "MAX_SERIES", 20)
    metrics = Metrics()
    for number in range(50):
        metrics.tokens.labels(f"model-{number}", "in", "answer").inc()
    body = metrics.render().decode()
    assert body.count("tollgate_tokens_total{") == 21
    assert 'tollgate_tokens_total{direction="other",model="other",purpose="other"} 30.0' in body


def test_idle_series_make_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "MAX_SERIES", 20)
    monkeypatch.setattr(buffers, "IDLE", -1.0)
    metrics = Metrics()
    for number in range(25):
        metrics.tokens.labels(f"model-{number}", "in", "answer").inc()
        metrics.in_flight.labels(f"model-{number}", "running").inc()
        metrics.flush()
    body = metrics.render().decode()
    assert "model-24" in body and 'tollgate_tokens_total{direction="in",model="model-1",' not in body
    assert 'model="other",purpose="other"' not in body
    assert 'tollgate_requests_in_flight{model="model-1",state="running"} 1.0' in body, "a gauge has a value"
