"""Lines get less of a backend whose requests feel them."""

from __future__ import annotations

import pytest

from gateway.admission.idle_share import LEAST, IdleShare
from tests.gateway.admission.test_idle import idle
from tests.gateway.admission.test_pool import a_pool, take


def learn(share: IdleShare, seconds: float, count: int, *, beside: bool, kind: str = "m") -> float:
    for _ in range(count):
        share.learn(kind, seconds, beside_lines=beside)
    return share.value


def test_requests_that_begin_later_beside_lines_leave_fewer_lines() -> None:
    share = IdleShare()
    learn(share, 0.1, 20, beside=False)
    assert learn(share, 0.15, 10, beside=True) == pytest.approx(0.6)
    assert learn(share, 0.15, 10, beside=True) == pytest.approx(0.36)
    assert learn(share, 0.15, 1000, beside=True) == LEAST
    assert learn(share, 0.1, 1000, beside=True) == 1.0


def test_without_requests_that_had_no_lines_beside_them_nothing_is_known() -> None:
    share = IdleShare()
    learn(share, 0.1, 4, beside=False)
    assert learn(share, 5.0, 100, beside=True) == 1.0
    learn(share, 0.1, 20, beside=False, kind="another")
    assert learn(share, 5.0, 100, beside=True) == 1.0


def test_one_slow_answer_among_many_is_no_sign() -> None:
    share = IdleShare()
    learn(share, 0.1, 20, beside=False)
    for _ in range(20):
        learn(share, 30.0, 2, beside=True)
        learn(share, 0.1, 8, beside=True)
    assert share.value == 1.0


def test_what_is_slower_by_itself_now_becomes_the_usual() -> None:
    share = IdleShare()
    learn(share, 0.1, 20, beside=False)
    learn(share, 0.3, 100, beside=True)
    learn(share, 0.3, 30, beside=False)
    assert learn(share, 0.3, 1000, beside=True) == 1.0


def test_a_pool_gives_lines_what_the_share_leaves_them() -> None:
    pool = a_pool(slots=16)
    learn(pool.lines.share, 0.1, 20, beside=False)
    learn(pool.lines.share, 0.2, 20, beside=True)
    assert [idle(pool).lease.is_granted for _ in range(4)] == [True, True, False, False]
    assert take(pool).beside_lines
