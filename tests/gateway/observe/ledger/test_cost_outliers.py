"""End users who cost far more than others, in real databases of both kinds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from random import Random

import pytest

from gateway.databases.database import Database
from gateway.observe.ended import Ended
from gateway.observe.ledger.cost_outliers import FEWEST, find_outliers
from gateway.observe.ledger.ledger import Ledger
from gateway.types import Principal, Usage
from tests.fakes import a_bill, a_call

pytestmark = pytest.mark.anyio


async def spend(
    database: Database, costs: Mapping[str, float], tenant: str = "acme", ago: float = 60.0
) -> None:
    ledger = Ledger(database)
    for number, (user, dollars) in enumerate(costs.items()):
        name = f"req_{tenant}_{ago}_{number}"
        call = a_call(principal=Principal("k", tenant), request_id=name, params={"user": user})
        call.receipt.created = time.time() - ago
        ledger.record(Ended(call, a_bill(Usage(1, 1), round(dollars * 1e9)), 200))
    await ledger.aclose()


def usual(seed: int, users: int = 200) -> dict[str, float]:
    draw = Random(seed)
    return {f"user-{number}": draw.lognormvariate(-3, 1) for number in range(users)}


async def test_one_who_costs_far_more(database: Database) -> None:
    costs = usual(1) | {"heavy": 60.0}
    await spend(database, costs)
    await spend(database, usual(2), tenant="other")
    await spend(database, {"few": 1e6} | usual(3, FEWEST - 2), tenant="small")
    await spend(database, {"old": 1e6}, ago=90_000)
    now = time.time()
    [found] = find_outliers(database, now - 86_400, now)
    assert (found.tenant, found.users, found.nanodollars) == ("acme", 201, 60 * 10**9)
    assert found.user != "heavy" and found.z > 5 and 0.02e9 < found.usual < 0.1e9


def test_no_ledger_has_none(tmp_path_factory: pytest.TempPathFactory) -> None:
    from gateway.databases.sqlite import SqliteDatabase

    assert find_outliers(SqliteDatabase(tmp_path_factory.mktemp("none") / "ledger.sqlite"), 0, 1) == []


def test_false_alarms_are_rare() -> None:
    """Of 300 days on which users differ by orders of magnitude, hardly one has an alarm."""
    from gateway.observe.ledger import cost_outliers

    alarms = sum(
        bool([*cost_outliers._of("t", {name: round(cost * 1e9) for name, cost in usual(seed).items()})])
        for seed in range(300)
    )
    assert alarms <= 3
