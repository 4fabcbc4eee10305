"""Real databases of both kinds, written by one process or several."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.apis import Units
from gateway.cli.usage import query, usage_since
from gateway.databases.database import Database
from gateway.metering.bill import Bill, Charge
from gateway.observe.ended import Ended
from gateway.observe.ledger.ledger import Ledger
from gateway.types import Principal, UpstreamUsage, Usage
from tests.fakes import CANDIDATE, TARGET, a_bill, a_call
from tests.ledgers import rows, sums, told

pytestmark = pytest.mark.anyio


async def test_a_request_is_recorded_whole(database: Database) -> None:
    ledger = Ledger(database)
    principal = Principal("k", "acme", tier="pro")
    call = a_call(principal=principal, request_id="req_1", model="alias")
    call.candidate = CANDIDATE
    call.receipt.note("fallback", attempts=[{"failed": True}, {"failed": False}])
    used = Usage(10, 5, cached=4, reasoning=2, cache_write=3, cache_write_1h=1, units=Units("second", 12.5))
    ended = Ended(call, a_bill(used, 1234, estimated=True), 200)
    ended.first_token, ended.chunks_after_first, ended.usage, ended.finish_reason = (
        0.25,
        4,
        used,
        "content_filter",
    )
    ended.seconds = 0.45
    ledger.record(ended)
    ledger.record(Ended(a_call(request_id="req_2", stream=False), Bill(), 503, "queue_full"))
    await ledger.aclose()
    first, second = rows(database)
    assert first == {
        "request_id": "req_1",
        "created": 1_700_000_000.0,
        "tenant": "acme",
        "key_id": "k",
        "tier": "pro",
        "model": "alias",
        "answered_model": "m",
        "backend": "up",
        "target_model": "upstream-model",
        "status": 200,
        "stream": 1,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 5,
        "reasoning_tokens": 2,
        "cost_nanodollars": 1234,
        "estimated": 1,
        "attempts": 2,
        "error": None,
        "cache_write_tokens": 3,
        "cache_write_1h_tokens": 1,
        "user_agent": "",
        "unit": "second",
        "units": 12.5,
        "seconds": 0.45,
        "first_token": 0.25,
        "inter_token": 0.05,
        "finish_reason": "content_filter",
        "model_refused": 1,
        "answer_tokens": 5,
        "end_user": "",
        "tags": "",
        "experiment": "",
        "arm": "",
        "score": None,
        "assignee": "",
    }
    assert (second["status"], second["stream"], second["backend"], second["attempts"]) == (503, 0, None, 0)
    assert second["error"] == "queue_full"
    assert ledger.lost == 0


async def test_what_our_own_queue_refused_was_not_asked(database: Database) -> None:
    ledger = Ledger(database)
    call = a_call()
    call.receipt.note("fallback", attempts=[{"admitted": False}, {"admitted": False}])
    ledger.record(Ended(call, Bill(), 503, "queue_full"))
    await ledger.aclose()
    assert rows(database)[0]["attempts"] == 0


async def test_the_hours_have_each_row_once_in_the_hour_of_its_request(database: Database) -> None:
    ledger = Ledger(database)
    for number, created in enumerate((3599.9, 3600.0, 7199.0, 3600.0)):
        call = a_call(request_id=f"req_{min(number, 2)}", model="m")
        call.receipt.created, call.user_agent = created, "curl/8"
        ledger.record(Ended(call, a_bill(Usage(10, 5), 2**40 + number), 200))
    await ledger.aclose()
    assert sums(database) == {(0, "ok"): (1, 10, 2**40), (3600, "ok"): (2, 20, 2 * 2**40 + 3)}
    assert sums(database, "days") == {(0, "ok"): (3, 30, 3 * 2**40 + 3)}
    assert [row["user_agent"] for row in rows(database, "SELECT user_agent FROM days")] == ["curl/8"]


async def test_all_that_a_request_took_is_there_once_under_its_own_model(database: Database) -> None:
    step = Charge(UpstreamUsage(TARGET, Usage(3, 4), True, "step", "small"), 30)
    answer = Charge(UpstreamUsage(TARGET, Usage(5, 6), False, "answer", "m"), 500)
    judge = Charge(UpstreamUsage(TARGET, Usage(7, 8), False, "judge", "guard"), 7000)
    ledger = Ledger(database)
    call = a_call(request_id="req_1", model="auto")
    call.candidate = CANDIDATE
    ledger.record(Ended(call, Bill((step, answer), 18, 530), 200))
    ledger.record(Ended(call, Bill((step, answer), 18, 530), 200))
    ledger.record_charges("req_1-shadow", 3.0, Principal("shadow", "house"), [judge])
    await ledger.aclose()
    found = rows(
        database,
        "SELECT request_id, tenant, purpose, model, prompt_tokens, completion_tokens, cost_nanodollars, estimated "
        "FROM spent ORDER BY cost_nanodollars",
    )
    assert [tuple(row.values()) for row in found] == [
        ("req_1", "acme", "step", "small", 3, 4, 30, 1),
        ("req_1", "acme", "answer", "m", 5, 6, 500, 0),
        ("req_1-shadow", "house", "judge", "guard", 7, 8, 7000, 0),
    ]
    assert [row["cost_nanodollars"] for row in rows(database)] == [500]
    assert sum(cost for _, _, cost in sums(database).values()) == 7530
    assert sum(cost for _, _, cost in sums(database, "days").values()) == 7530


async def test_each_request_counts_once(database: Database) -> None:
    for cost in (1, 2):
        ledger = Ledger(database)
        for _ in range(2):
            ledger.record(Ended(a_call(request_id="req_1"), a_bill(Usage(0, 0), cost), 200))
        await ledger.aclose()
    assert [row["cost_nanodollars"] for row in rows(database)] == [1]
    assert list(sums(database).values()) == list(sums(database, "days").values()) == [(1, 0, 1)]


WRITER = """
import asyncio, sys
from gateway.observe.ended import Ended
from gateway.observe.ledger.ledger import Ledger
from gateway.types import Usage
from tests.fakes import a_bill, a_call
from tests.ledgers import opened
ledger = Ledger(opened(sys.argv[1]))
for n in range(500):
    own = a_call(request_id=f"{sys.argv[2]}-{n}", model=f"m{n % 7}")
    ledger.record(Ended(own, a_bill(Usage(0, 0), 1)))
    ledger.record(Ended(a_call(request_id=f"all-{n}"), a_bill(Usage(0, 0), 1)))
asyncio.run(ledger.aclose())
sys.exit(ledger.lost)
"""


def test_several_processes_that_start_together_write_to_one(database: Database) -> None:
    root = Path(__file__).parents[4]
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, told(database), name], cwd=root)
        for name in ("a", "b", "c")
    ]
    assert [writer.wait(300) for writer in writers] == [0, 0, 0]
    assert len(rows(database)) == 2000
    assert sum(requests for requests, _, _ in sums(database).values()) == 2000


async def test_a_row_that_cannot_be_written_does_not_hold_up_the_others(database: Database) -> None:
    ledger = Ledger(database)
    for n in range(3):
        ledger.record(Ended(a_call(request_id=f"req_{n}"), a_bill(Usage(10**30 if n == 1 else 1, 1), 1), 200))
    await ledger.aclose()
    assert [row["request_id"] for row in rows(database)] == ["req_0", "req_2"]
    assert ledger.lost == 1
    assert sum(requests for requests, _, _ in sums(database).values()) == 2


async def test_text_that_a_caller_chose_is_never_a_reason_to_lose_a_row(database: Database) -> None:
    ledger = Ledger(database)
    call = a_call(request_id="req_1", model="nul \0 and % and :name and 'quote'")
    call.user_agent = "\0"
    ledger.record(Ended(call, a_bill(Usage(0, 0)), 200))
    await ledger.aclose()
    assert ledger.lost == 0 and len(rows(database)) == 1


async def test_end_users_are_hashes_that_differ_from_tenant_to_tenant(database: Database) -> None:
    for _ in range(2):  # replicas, and after a restart
        ledger = Ledger(database)
        for number, (tenant, user) in enumerate(
            [("a", "bob"), ("a", "bob"), ("b", "bob"), ("a", "eve"), ("a", "")]
        ):
            who = {"params": {"safety_identifier": user}}
            call = a_call(principal=Principal("k", tenant), request_id=f"req_{number}", **who)
            ledger.record(Ended(call))
        await ledger.aclose()
    users = [row["end_user"] for row in rows(database)]
    assert users[0] == users[1] and len({*users}) == 4 and users[4] == ""
    assert len(rows(database, "SELECT * FROM salts")) == 2


async def test_usage_by_what_happened(database: Database) -> None:
    ledger = Ledger(database)
    for number, (user, finish) in enumerate([("bob", "stop"), ("bob", "length"), ("eve", "stop")]):
        call = a_call(request_id=f"req_{number}", params={"user": user})
        call.tags = ",a,b," if number else ""
        ended = Ended(call, a_bill(Usage(1, 1), 5))
        ended.finish_reason = finish
        ledger.record(ended)
    upstream = UpstreamUsage(TARGET, Usage(1, 1), purpose="judge", model="j")
    ledger.record_charges("req_0", call.receipt.created, call.principal, [Charge(upstream, 7)])
    await ledger.aclose()
    with database.reading() as reader:
        asked = query(database, reader, ("user", "finish_reason"))
        found = reader.rows(asked, {"since": 0.0})
    bob, eve = (row["end_user"] for row in rows(database)[::2])
    sums = {(row["name_0"], row["name_1"]): (row["requests"], row["cost_nanodollars_low"]) for row in found}
    assert sums == {(bob, "stop"): (1, 12), (bob, "length"): (1, 5), (eve, "stop"): (1, 5)}
    assert {name for row in usage_since(database, ["tag"], 0.0) for name in row["names"]} == {"", ",a,b,"}
