"""Waits between attempts: they double to an end, heed what a server asks for, and are spread where that is wanted."""

from __future__ import annotations

import pytest

from gateway.backoff import Backoff


def test_waits_double_up_to_the_most() -> None:
    assert [Backoff(0.25, most=1.5).after(failures) for failures in (1, 2, 3, 4, 10**9)] == [
        *(0.25, 0.5, 1.0, 1.5, 1.5)
    ]


@pytest.mark.parametrize(("asked", "wait"), [(None, 2.0), (0.0, 2.0), (5.0, 5.0), (86_400.0, 600.0)])
def test_what_a_server_asks_for_is_heeded_within_reason(asked: float | None, wait: float) -> None:
    assert Backoff(1.0, most=60.0).after(2, asked) == wait


def test_drawn_waits_are_spread_from_0_to_the_whole() -> None:
    drawn = [Backoff(1.0).drawn(3) for _ in range(200)]
    assert 0 <= min(drawn) < 1 and 3 < max(drawn) <= 4
