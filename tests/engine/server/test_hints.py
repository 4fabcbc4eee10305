from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.server.hints import Hints, read_hints


@pytest.mark.parametrize(
    ("value", "priority"),
    [
        (b"2", 2),
        (b"-3", -3),
        (b" 4 ", 4),
        (b"99999999", 1000),
        (b"-1e300", -1000),
        (b"1.5", 0),
        (b"high", 0),
        (b"", 0),
        (b"nan", 0),
        (b"inf", 0),
        (b"\xff", 0),
    ],
)
def test_priority_is_a_whole_number_within_bounds(value: bytes, priority: int) -> None:
    assert read_hints({b"x-tollgate-priority": value}, 0.0).priority == priority


@pytest.mark.parametrize(
    ("value", "deadline"),
    [(b"2.5", 102.5), (b"0", 100.0), (b"-1", 99.0), (b"2s", None), (b"inf", None), (b"nan", None)],
)
def test_a_deadline_is_seconds_from_now(value: bytes, deadline: float | None) -> None:
    assert read_hints({b"x-tollgate-deadline": value}, 100.0).deadline == deadline


@pytest.mark.parametrize(
    ("value", "weight"),
    [(b"8", 8.0), (b"0.5", 0.5), (b"1e9", 100.0), (b"1e-9", 0.01), (b"0", 1.0), (b"-2", 1.0), (b"much", 1.0)],
)
def test_a_weight_is_a_positive_number_within_bounds(value: bytes, weight: float) -> None:
    assert read_hints({b"x-tollgate-weight": value}, 0.0).weight == weight


def test_an_engine_that_computes_the_prompt_is_named() -> None:
    assert (
        read_hints({b"x-tollgate-prefill": b"unix:///run/kv.sock"}, 0.0).prefill_at == "unix:///run/kv.sock"
    )


def test_without_headers_there_are_no_hints() -> None:
    assert read_hints({b"accept": b"*/*"}, 5.0) == Hints(0, 1.0, None)


@given(st.binary(max_size=12), st.binary(max_size=12))
def test_nothing_in_a_header_can_fail(priority: bytes, deadline: bytes) -> None:
    found = read_hints({b"x-tollgate-priority": priority, b"x-tollgate-deadline": deadline}, 0.0)
    assert -1000 <= found.priority <= 1000


def test_a_salt_is_the_tenants_and_the_callers_together() -> None:
    def salt(own: str | None = None, **headers: bytes) -> bytes:
        named = {f"x-tollgate-{name.replace('_', '-')}".encode(): value for name, value in headers.items()}
        return read_hints(named, 0.0).salt(own)

    assert salt() == salt(tenant=b"") == b"", "nobody is told apart where nobody says who he is"
    found = {
        salt(tenant=b"acme"),
        salt(tenant=b"globex"),
        salt("mine"),
        salt("mine", tenant=b"acme"),
        salt("mine", tenant=b"globex"),
        salt("acme"),
        salt("globexmine", tenant=b""),
    }
    assert len(found) == 7, "no caller's own salt makes him another tenant"
    assert salt("mine", tenant=b"acme", prefix_sharing=b"all") == salt("mine")
    assert salt(tenant=b"acme", prefix_sharing=b"all") == b""
    assert salt(tenant=b"acme", prefix_sharing=b"system") == salt(tenant=b"acme")
    assert salt(tenant=b"acme", prefix_sharing=b"whatever") == salt(tenant=b"acme")
    assert salt(tenant=b"\xff" * 1000)
