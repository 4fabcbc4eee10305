"""What is kept of a request that has ended, until its writers have rendered it."""

from __future__ import annotations

import gc
import logging
from types import FunctionType, ModuleType

import pytest

from gateway.observe.ended import Ended, level_of
from gateway.types import Call, ChatRequest, Receipt, Usage
from tests.fakes import CANDIDATE, a_bill, a_call


def test_it_holds_neither_the_call_nor_its_content() -> None:
    """Ten thousand may wait while a database is away, and prompts are long."""
    call = a_call()
    call.candidate = CANDIDATE
    found: list[object] = [Ended(call, a_bill(Usage(7, 2), 5))]
    seen = set()
    for one in found:
        if id(one) not in seen and not isinstance(one, type | ModuleType | FunctionType):
            seen.add(id(one))
            found += gc.get_referents(one)
    assert not [one for one in found if isinstance(one, Call | ChatRequest | Receipt)]


def test_a_receipt_that_ends_twice_has_what_both_add() -> None:
    """As a copy's, whose payer settles apart from it."""
    call = a_call()
    call.receipt.note("quota", unmetered="the store is away")
    settled, closed = Ended(call, a_bill(Usage(7, 2), 5)), Ended(call, status=502, error="upstream_error")
    settled.is_settled, closed.trace_id = True, "1"
    call.receipt.close(settled)
    call.receipt.close(closed)
    assert call.receipt.notes["trace"]["status"] == 502
    assert call.receipt.notes["quota"]["used_tokens"] == 9
    assert call.receipt.notes["quota"]["unmetered"] == "the store is away"
    assert call.receipt.notes is call.receipt.noted


@pytest.mark.parametrize(
    ("status", "name"), [(200, "INFO"), (404, "WARNING"), (499, "INFO"), (500, "ERROR"), (502, "WARNING")]
)
def test_the_level_of_its_line(status: int, name: str) -> None:
    assert logging.getLevelName(level_of(status)) == name
