"""How long to wait before another try, and how many there may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import (
    ContextTooLong,
    EstimatedWait,
    GatewayError,
    NotConnected,
    Overloaded,
    RateLimited,
    UpstreamFailed,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from gateway.fallback.retry import INITIAL_RETRIES, MAX_SAVED_RETRIES, RetryBudget, is_retryable, retry_delay


@given(st.floats(0.01, 5), st.integers(1, 9), st.booleans())
def test_the_backoff_doubles_with_full_jitter(backoff: float, failed: int, others: bool) -> None:
    wait = retry_delay(UpstreamFailed("x"), backoff, failed, others=others, left=1e9)
    assert wait is not None
    assert 0 <= wait <= backoff * 2 ** (failed - 1)


def test_jitter_is_not_always_the_same() -> None:
    assert len({retry_delay(UpstreamFailed("x"), 1.0, 1, others=False, left=9) for _ in range(20)}) > 15


@pytest.mark.parametrize(
    ("asked", "others", "waits"),
    [(1.9, True, True), (2.1, True, False), (2.1, False, True), (9.9, False, True), (10.1, False, False)],
)
def test_what_the_server_asks_for(asked: float, others: bool, waits: bool) -> None:
    wait = retry_delay(RateLimited("x", retry_after=asked), 0.25, 1, others=others, left=60)
    assert (wait is not None) == waits
    if wait is not None:
        assert asked <= wait <= asked + 0.25


def test_what_the_gateway_made_up_itself_is_not_waited_for() -> None:
    wait = retry_delay(UpstreamUnavailable("x", retry_after=EstimatedWait(30)), 0.25, 1, others=True, left=60)
    assert wait is not None
    assert wait <= 0.25


def test_nobody_waits_past_the_end() -> None:
    assert retry_delay(RateLimited("x", retry_after=5), 0.25, 1, others=False, left=5) is None


@pytest.mark.parametrize(
    ("error", "hope"),
    [
        (UpstreamFailed("x"), True),
        (UpstreamUnavailable("x"), True),
        (RateLimited("x"), True),
        (UpstreamTimeout("x"), False),
        (NotConnected("x"), False),
        (UpstreamFailed("x", code="upstream_auth"), False),
        (UpstreamFailed("x", code="upstream_billing"), False),
        (Overloaded("x"), False),
        (ContextTooLong("x", status=400, type=None, param=None, code=None), False),
    ],
)
def test_what_another_try_can_mend(error: GatewayError, hope: bool) -> None:
    assert is_retryable(error) is hope


@given(st.lists(st.booleans(), max_size=300), st.floats(0.01, 1))
def test_retries_stay_a_share_of_requests(events: list[bool], share: float) -> None:
    budget = RetryBudget()
    requests = retries = 0
    for is_request in events:
        if is_request:
            budget.deposit(share)
            requests += 1
        elif budget.take(share):
            retries += 1
        assert retries <= INITIAL_RETRIES + share * requests + 1e-6


def test_quiet_times_save_up_only_so_much() -> None:
    budget = RetryBudget()
    for _ in range(10_000):
        budget.deposit(1.0)
    assert sum(budget.take(1.0) for _ in range(10_000)) == MAX_SAVED_RETRIES
