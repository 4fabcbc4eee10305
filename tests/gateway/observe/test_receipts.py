from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from gateway.observe import batch_writer as module
from gateway.observe.receipts import Receipts
from gateway.stores.memory import MemoryStore
from gateway.stores.redis import RedisStore
from gateway.stores.store import StoreDown
from gateway.types import Receipt
from tests.fakes import within
from tests.redis_server import RedisServer

pytestmark = pytest.mark.anyio


def a_receipt(request_id: str = "req_1", **facts: Any) -> Receipt:
    receipt = Receipt(request_id, 1_700_000_000.1234)
    receipt.note("route", **{"backend": "up", **facts})
    return receipt


def a_usual_receipt(request_id: str) -> Receipt:
    """As a request without a guard has one."""
    receipt = a_receipt(request_id, model="gpt-4o", candidates=["up/gpt-4o", "up/other"], why="primary")
    receipt.note("queue", pool="up", began=0.001106, waited=5.3e-05, position=0, saturation=0.0)
    attempt = {"backend": "up", "model": "gpt-4o", "first_chunk": 0.3029, "began": 0.001071, "sent": 0.002755}
    receipt.note("fallback", attempts=[{**attempt, "seconds": 0.302068, "outcome": "ok"}], continued=0)
    receipt.note("quota", reserved_tokens=21, used_tokens=18, cost_usd=6.75e-06, source="backend")
    receipt.note("meter", first_token=0.303, prompt_tokens=9, completion_tokens=9, cached_tokens=0)
    return receipt


async def settled(receipts: Receipts) -> None:
    await asyncio.wait_for(asyncio.to_thread(receipts._writer.flush), 300)


class Failing(MemoryStore):
    """A store that raises ``error`` as long as there is one."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error: Exception | None = error

    async def put(self, values: Mapping[str, bytes], ttl: float) -> None:
        if self.error:
            raise self.error
        await super().put(values, ttl)


async def test_a_receipt_is_found_by_its_own_tenant_alone() -> None:
    receipts = Receipts(MemoryStore())
    receipts.keep("acme", a_receipt())
    await settled(receipts)
    assert await receipts.find("acme", "req_1") == {
        "id": "req_1",
        "object": "tollgate.receipt",
        "created": 1_700_000_000.123,
        "stages": {"route": {"backend": "up"}},
    }
    assert await receipts.find("other", "req_1") is None
    assert await receipts.find("acme", "req_2") is None
    await receipts.aclose()


async def test_those_in_memory_take_a_third_of_what_they_say() -> None:
    store = MemoryStore()
    receipts = Receipts(store)
    for number in range(20):
        receipts.keep("acme", a_usual_receipt(f"req_{number}"))
    await settled(receipts)
    found = [await receipts.find("acme", f"req_{number}") for number in range(20)]
    kept = [await store.get(f"receipt:acme req_{number}") or b"" for number in range(20)]
    assert sum(map(len, kept)) * 3 < sum(len(orjson.dumps(one)) for one in found)
    assert [one and one["id"] for one in found] == [f"req_{number}" for number in range(20)]
    await receipts.aclose()


async def test_others_read_what_is_not_in_memory(redis_server: RedisServer) -> None:
    """Gateways of other versions share a Redis."""

    store = RedisStore(redis_server.url)
    receipts = Receipts(store)
    receipts.keep("acme", a_receipt())
    await settled(receipts)
    assert orjson.loads(await store.get("receipt:acme req_1") or b"") == await receipts.find("acme", "req_1")
    await receipts.aclose()


async def test_what_is_kept_again_while_it_is_written_is_written_again() -> None:
    """A guard's verdict may come after the request has ended."""

    class Held(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.begun, self.gate = asyncio.Event(), asyncio.Event()

        async def put(self, values: Mapping[str, bytes], ttl: float) -> None:
            self.begun.set()
            await self.gate.wait()
            await super().put(values, ttl)

    store, receipt = Held(), a_receipt()
    receipts = Receipts(store)
    receipts.keep("acme", receipt)
    await asyncio.wait_for(store.begun.wait(), 300)
    receipt.note("guard_input", late=True)
    receipts.keep("acme", receipt)
    for _ in range(2):  # while it is being written, and afterwards
        found = await receipts.find("acme", "req_1")
        assert found is not None
        assert found["stages"]["guard_input"] == {"late": True}
        store.gate.set()
        await settled(receipts)
    await receipts.aclose()


async def test_no_tenant_can_spell_anothers_receipt() -> None:
    receipts = Receipts(MemoryStore())
    receipts.keep("acme:eu", a_receipt("req_1"))
    await settled(receipts)
    for request_id in ("eu:req_1", "eu req_1", ":eu:req_1", ":eu req_1"):
        assert await receipts.find("acme", request_id) is None
    await receipts.aclose()


async def test_a_store_that_is_down_costs_receipts_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    store = Failing(StoreDown("no redis"))
    receipts = Receipts(store)
    receipts.keep("acme", a_receipt("req_1"))
    await settled(receipts)
    assert "(1 so far): no redis" in caplog.text
    store.error = None
    receipts.keep("acme", a_receipt("req_2"))
    await settled(receipts)
    assert await receipts.find("acme", "req_1") is None
    assert await receipts.find("acme", "req_2") is not None
    await receipts.aclose()


async def test_a_store_that_stays_down_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    receipts = Receipts(Failing(StoreDown("no redis")))
    for i in range(3):
        receipts.keep("acme", a_receipt(f"req_{i}"))
        await settled(receipts)
    assert caplog.text.count("receipts are lost") == 1
    await receipts.aclose()


async def test_a_bug_in_one_receipt_does_not_end_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    receipts = Receipts(MemoryStore())
    receipts.keep("acme", a_receipt("req_1", odd=object()))
    receipts.keep("acme", a_receipt("req_2"))
    await settled(receipts)
    assert await receipts.find("acme", "req_2") is not None
    assert "req_1" in caplog.text
    await receipts.aclose()


async def test_a_full_backlog_drops_receipts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BACKLOG", 3)
    receipts = Receipts(MemoryStore())
    for number in range(5):
        receipts.keep("acme", a_receipt(f"req_{number}"))
    await settled(receipts)
    found = [await receipts.find("acme", f"req_{number}") is not None for number in range(5)]
    assert found == [True, True, True, False, False]
    await receipts.aclose()


async def test_closing_writes_what_is_waiting() -> None:
    kept: list[str] = []

    class Slow(MemoryStore):
        async def put(self, values: Mapping[str, bytes], ttl: float) -> None:
            await asyncio.sleep(0.01)
            kept.extend(values)

    receipts = Receipts(Slow())
    for number in range(3):
        receipts.keep("acme", a_receipt(f"req_{number}"))
    await receipts.aclose()
    assert len(kept) == 3


async def test_closing_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SECONDS_TO_CLOSE", 0.05)

    class Stuck(MemoryStore):
        async def put(self, values: Mapping[str, bytes], ttl: float) -> None:
            await asyncio.sleep(60)

    receipts = Receipts(Stuck())
    receipts.keep("acme", a_receipt("req_1"))
    receipts.keep("acme", a_receipt("req_2"))
    with caplog.at_level(logging.WARNING):
        async with within(0.3):
            await receipts.aclose()
    assert "not stored in time" in caplog.text


async def test_receipts_live_for_an_hour() -> None:
    times: list[float] = []

    class Watched(MemoryStore):
        async def put(self, values: Mapping[str, bytes], ttl: float) -> None:
            times.append(ttl)

    receipts = Receipts(Watched())
    receipts.keep("acme", a_receipt())
    await receipts.aclose()
    assert times == [3600.0]
