"""What the ledger has of an experiment, in both kinds of database."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.databases.database import Database
from gateway.metering.bill import Bill
from gateway.observe.ended import Ended
from gateway.observe.ledger.experiment_sums import VALUES, sums_of
from gateway.observe.ledger.ledger import Ledger
from gateway.observe.ledger.score import write_score
from gateway.types import Usage
from tests.fakes import a_bill, a_call

pytestmark = pytest.mark.anyio

RUN = "tone#12345678"


def ended(
    number: int, arm: str, user: str, *given: Any, run: str = RUN, tokens: int = 0, cost: int = 0
) -> Ended:
    """``given``: a status and an error."""
    call = a_call(request_id=f"req_{number}")
    call.receipt.note("experiment", name=run, arm=arm, assignee=user)
    bill = a_bill(Usage(10, tokens), cost) if tokens else Bill()
    one = Ended(call, bill, *(given or (200,)))
    if tokens:
        call.receipt.note("fallback", attempts=[{}])
        one.usage, one.first_token = Usage(10, tokens), tokens / 100
    return one


async def test_sums_are_over_users_and_of_what_the_metric_is_known(database: Database) -> None:
    ledger = Ledger(database)
    answered: list[tuple[str, str, int]] = [
        ("a", "ann", 10),
        ("a", "ann", 30),
        ("a", "bob", 20),
        ("b", "cem", 5),
    ]
    for number, (arm, user, tokens) in enumerate(answered):
        ledger.record(ended(number, arm, user, tokens=tokens, cost=tokens * 10**9))
    failed = ended(10, "a", "bob", 502, "upstream_error")
    failed.noted["fallback"] = {"attempts": [{"fault": "x"}]}
    ledger.record(failed)
    cut = ended(11, "b", "dan", tokens=40, cost=0)
    cut.finish_reason = "content_filter"
    cut.noted["guard_output"] = {"cut": {"reason": "content_filter"}}
    ledger.record(cut)
    ledger.record(ended(12, "b", "cem", 400, "content_policy_violation"))
    declined = ended(13, "b", "eve", tokens=1, cost=0)
    declined.has_refusal = True
    ledger.record(declined)
    ledger.record(ended(14, "a", "ann", 429, "rate_limit_exceeded"))  # no arm's fault
    ledger.record(ended(15, "a", "ann", 499, "client_left"))
    ledger.record(ended(16, "a", "ann", tokens=99, run="tone#87654321"))  # another content
    await ledger.aclose()
    for number, score in ((0, 1.0), (1, 0.5), (3, 0.25)):
        assert write_score(database, "acme", f"req_{number}", score)
    found = sums_of(database, RUN, [*VALUES], 0.0)
    a, b = found["a"], found["b"]
    assert (a["units"], b["units"]) == (2, 3)

    def of(arm: dict[str, Any], metric: str) -> tuple[float, ...]:
        names = ("units", "count", "total", "count_squares", "total_squares", "products")
        return tuple(float(arm[f"{metric}_{name}"]) for name in names)

    # ann has 2 answers of 40 tokens together, bob one of 20.
    assert of(a, "length") == (2, 3, 60, 5, 2000, 100)
    assert of(a, "cost")[:3] == (2, 4, pytest.approx(60.0)), "the failed one is known to have cost nothing"
    assert of(a, "score") == (1, 2, 1.5, 4, 2.25, 3.0)
    assert of(b, "score") == (1, 1, 0.25, 1, 0.0625, 0.25)
    assert of(a, "errors") == (2, 4, 1, 8, 1, 2)
    assert of(a, "ttft")[:3] == (2, 3, pytest.approx(0.6))
    assert of(b, "blocked")[:3] == (3, 4, 2), "one refused, one cut"
    assert of(b, "refusals")[:3] == (3, 3, 1), "that the model declined"
    assert of(b, "errors")[:3] == (3, 3, 0)
    assert sums_of(database, RUN, ["errors"], 2_000_000_000.0) == {}
    assert sums_of(database, "tone#none", ["errors"], 0.0) == {}


def test_a_ledger_that_is_not_there_has_nothing(database: Database) -> None:
    assert sums_of(database, RUN, ["errors"], 0.0) == {}
