from __future__ import annotations

import asyncio

import pytest

from gateway import errors
from gateway.observe.metrics import Metrics
from gateway.observe.outcome import outcome_of


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
