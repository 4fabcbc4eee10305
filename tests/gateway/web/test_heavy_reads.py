"""Small requests that have much read: off everybody's way, counted, and within bounds."""

from __future__ import annotations

import asyncio
import tracemalloc
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.errors import BadRequest, Overloaded
from gateway.files.file_table import StoredFile
from gateway.stores import response_store
from gateway.stores.memory import MemoryStore
from gateway.stores.response_store import ResponseStore, StoredResponse
from gateway.types import ChatRequest
from gateway.web import attached_files, conversation
from gateway.web.conversation import recall
from gateway.web.heavy_reads import MOST_WAITING, SMALL, HeavyReads
from gateway.wire.responses.body_to_request import read_request
from tests.fakes import FakeUpstream
from tests.gateway.admission.virtual_time import in_virtual_time
from tests.serving import a_policy, serving

pytestmark = pytest.mark.anyio

MIB = 2**20
RESPONSE = "resp_" + "a" * 24
LATER = "resp_" + "b" * 24


@in_virtual_time
async def test_so_many_bytes_a_second_are_begun_with_in_turns_of_tenants() -> None:
    loop, reads = asyncio.get_running_loop(), HeavyReads(rate=10 * MIB, most=1000 * MIB)
    began: list[tuple[str, float]] = []

    async def read(owner: str) -> None:
        reading = reads.of(owner)
        await reading.add(5 * MIB)
        began.append((owner, round(loop.time(), 3)))
        reading.release()

    await asyncio.gather(
        *(read(owner) for owner in ("mallory", "mallory", "mallory", "mallory", "alice", "bob"))
    )
    assert [owner for owner, _ in began] == ["mallory", "mallory", "alice", "bob", "mallory", "mallory"]
    assert [at - began[0][1] for _, at in began] == pytest.approx([0, 0.5, 1, 1.5, 2, 2.5])
    assert reads.held == 0


@in_virtual_time
async def test_what_is_held_is_bounded_for_each_tenant_and_in_all() -> None:
    reads = HeavyReads(most=100 * MIB, rate=1e12, wait=5)
    mallory, more, alice, bob, large = (reads.of(name) for name in ("m", "m", "a", "b", "large"))
    await mallory.add(50 * MIB)
    with pytest.raises(Overloaded) as refusal:
        await more.add(1 * MIB)
    assert refusal.value.code == "too_much_read"
    await alice.add(40 * MIB)
    waiting = asyncio.create_task(bob.add(20 * MIB))
    await asyncio.sleep(1)
    assert not waiting.done()
    assert reads.held == 90 * MIB
    mallory.release()
    mallory.release()
    await waiting
    assert reads.held == 60 * MIB
    alone = asyncio.create_task(large.add(200 * MIB))
    await asyncio.sleep(1)
    assert not alone.done(), "what is larger than all holds it alone"
    alice.release()
    bob.release()
    await alone
    large.release()
    assert reads.held == 0


@in_virtual_time
async def test_who_leaves_takes_nothing_with_him() -> None:
    reads = HeavyReads(most=10 * MIB, rate=1e12)
    first = reads.of("a")
    await first.add(10 * MIB)
    waiting = [asyncio.create_task(reads.of("b").add(2 * MIB)) for _ in range(MOST_WAITING)]
    await asyncio.sleep(1)
    with pytest.raises(Overloaded):
        await reads.of("b").add(2 * MIB)
    for task in waiting[:-1]:
        task.cancel()
    first.release()  # in the same moment
    await asyncio.gather(*waiting, return_exceptions=True)
    assert reads.held == 2 * MIB
    await reads.of("c").add(2 * MIB)


async def test_little_is_read_without_further_ado() -> None:
    reads = HeavyReads(most=1, rate=1)
    for _ in range(100):
        await reads.of("a").add(SMALL)
    assert reads.held == 0


async def a_store(*, items: int = 40, size: int = SMALL // 2) -> ResponseStore:
    """A conversation of two responses."""
    store = ResponseStore(MemoryStore(max_bytes=100 * MIB), ttl=60, max_entry=50 * MIB)
    before: list[str] = []
    total = 0
    for name in (RESPONSE, LATER):
        said = {"id": name.replace("resp", "msg") + "_0", "type": "message", "role": "assistant"}
        said |= {"status": "completed", "content": [{"type": "output_text", "text": "Hm."}]}
        response = {"object": "response", "id": name, "status": "completed", "output": [said]}
        own = [
            {"id": f"msg_{name[5:]}_i{n}", "type": "message", "role": "user", "content": "x" * size}
            for n in range(items)
        ]
        assert await store.put("acme", StoredResponse(response, own, list(before), total))
        kept = await store.find("acme", name)
        assert kept is not None
        total = kept.size
        before.append(name)
    return store


def asking(**more: Any) -> Any:
    return read_request(orjson.dumps({"model": "m", "input": "And?", **more}))


async def test_the_loop_runs_on_while_a_conversation_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store, reads = await a_store(), HeavyReads()
    at_once, most = 0, 0

    class Counted:
        @staticmethod
        def loads(piece: memoryview) -> Any:
            nonlocal at_once, most
            at_once += len(piece)
            most = max(most, at_once)
            return orjson.loads(piece)

    async def turns() -> None:
        nonlocal at_once
        while True:
            at_once = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(conversation, "orjson", Counted)
    others = asyncio.create_task(turns())
    readings = [reads.of("acme") for _ in range(4)]
    asked = asking(previous_response_id=LATER)
    found = await asyncio.gather(
        *(recall(store, "acme", asked, one, most_items=1000, most_bytes=50 * MIB) for one in readings)
    )
    others.cancel()
    assert [len(before.items) for _, before in found] == [82] * 4
    assert SMALL / 4 < most <= 5 * SMALL, "in any iteration, whoever reads"
    size = (await store.find("acme", LATER)).size  # type: ignore[union-attr]
    assert reads.held == 4 * size
    for one in readings:
        one.release()
    assert reads.held == 0


async def test_nothing_is_read_of_what_is_too_much() -> None:
    store, reads = await a_store(), HeavyReads()

    async def refused(asked: Any, code: str, **bounds: int) -> None:
        bounds = {"most_items": 1000, "most_bytes": 50 * MIB, **bounds}
        with pytest.raises(BadRequest) as refusal:
            await recall(store, "acme", asked, reads.of("acme"), **bounds)
        assert refusal.value.code == code
        assert reads.held == 0

    goes_on = asking(previous_response_id=LATER)
    await refused(goes_on, "conversation_too_large", most_bytes=MIB)
    await refused(goes_on, "array_above_max_length", most_items=80)
    reference = {"type": "item_reference", "id": f"msg_{RESPONSE[5:]}_i3"}
    await refused(asking(input=[reference] * 100), "conversation_too_large", most_bytes=SMALL * 40)
    asked, _ = await recall(
        *(store, "acme", asking(input=[reference] * 3), reads.of("acme")), most_items=9, most_bytes=MIB
    )
    assert [len(item["content"]) for item in asked.items] == [SMALL // 2] * 3


async def test_where_pieces_lie_is_looked_up_a_little_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation of 10,000 letters is small, and long: each look parsed all of it."""
    store, reads = await a_store(items=5_000, size=1), HeavyReads()
    parsed, most, in_all = 0, 0, 0

    class Counted:
        dumps = orjson.dumps

        @staticmethod
        def loads(text: bytes) -> Any:
            nonlocal parsed, most, in_all
            parsed += len(text)
            in_all += len(text)
            most = max(most, parsed)
            return orjson.loads(text)

    async def turns() -> None:
        nonlocal parsed
        while True:
            parsed = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(response_store, "orjson", Counted)
    others = asyncio.create_task(turns())
    found = await asyncio.gather(*(store.find("acme", RESPONSE) for _ in range(8)))
    assert all(kept is not None and kept.answered for kept in found)
    assert in_all < 10_000, "who asks for a response, asks not for what it answers"
    asked, readings = asking(previous_response_id=LATER), [reads.of("acme") for _ in range(4)]
    await asyncio.gather(
        *(recall(store, "acme", asked, one, most_items=20_000, most_bytes=50 * MIB) for one in readings)
    )
    others.cancel()
    marks = found[0].marks if found[0] is not None else 0
    assert marks > SMALL
    # One record in any iteration, whoever reads. Two iterations may lie between two steps of ``turns``: the end of one,
    # and the beginning of the next.
    assert most <= 2 * marks


async def test_room_is_taken_before_a_file_is_read_and_it_is_read_a_little_at_a_time() -> None:
    content = b"%PDF-" + bytes(range(256)) * 8000
    reads = HeavyReads()
    iterations = 0

    class Files:
        async def find(self, tenant: str, id: str) -> Any:
            return StoredFile(id, tenant, "report", "user_data", len(content), 0, None, "k")

        async def read(self, tenant: str, id: str) -> AsyncIterator[bytes]:
            assert reads.held >= len(content)
            for start in range(0, len(content), 10_001):
                yield content[start : start + 10_001]

    async def ticks() -> None:
        nonlocal iterations
        while True:
            iterations += 1
            await asyncio.sleep(0)

    part = {"type": "file", "file": {"file_id": "file-" + "0" * 32}}
    request = ChatRequest("m", messages=({"role": "user", "content": [part]},))
    ticking = asyncio.create_task(ticks())
    reading = reads.of("acme")
    files: Any = Files()
    got = await attached_files.attach(request, files, "acme", reading, most_bytes=10 * MIB)
    ticking.cancel()
    assert iterations >= len(content) // 10_001
    assert got.messages is not None
    url = got.messages[0]["content"][0]["file"]["file_data"]
    head, _, data = url.partition(",")
    assert head == "data:application/pdf;base64"
    assert b64decode(data, validate=True) == content
    reading.release()


async def test_what_is_read_is_cut_out_of_the_store_and_large_reads_count(
    tmp_path: Path, upstream: FakeUpstream
) -> None:
    tenants = {"acme": {"quotas": {"requests_per_minute": 6}}}
    rules = a_policy(upstream.base_url, tenants=tenants)
    async with serving(tmp_path / "p", rules, max_body_bytes=10 * MIB) as gateway:
        body = {"model": "fake", "input": [{"role": "user", "content": "x" * SMALL}] * 3}
        made = (await gateway.http.post("/v1/responses", json=body)).json()
        path = f"/v1/responses/{made['id']}"
        for _ in range(10):
            found = await gateway.http.get(path)
            assert found.json() == made, "little, and not counted"
            assert "x-ratelimit-limit-requests" not in found.headers
        statuses = []
        for _ in range(6):
            page = await gateway.http.get(f"{path}/input_items?limit=2")
            statuses.append(page.status_code)
            if page.status_code == 200:
                listed = page.json()
                assert [len(one["content"][0]["text"]) for one in listed["data"]] == [SMALL] * 2
                assert (listed["has_more"], listed["first_id"]) == (True, listed["data"][0]["id"])
                assert listed["last_id"] == listed["data"][1]["id"]
                assert page.headers["x-ratelimit-limit-requests"] == "6"
        assert statuses == [200] * 5 + [429]


async def test_a_record_of_an_older_version_is_read() -> None:
    store = await a_store(items=2, size=10)
    kept = await store.find("acme", LATER)
    assert kept is not None
    record = await store.record("acme", kept)
    assert record is not None
    old = ResponseStore(MemoryStore(), ttl=60, max_entry=MIB)
    await old.store.put({f"response:acme {LATER}": orjson.dumps(record)}, 60)
    again = await old.find("acme", LATER)
    for name in ("id", "status", "background", "before", "size", "bare", "said", "items", "own"):
        assert getattr(again, name) == getattr(kept, name), name
    content = await old.content("acme", again)
    assert content is not None
    assert orjson.loads(again.response(content)) == record.response
    assert await old.record("acme", again) == record
    await old.delete("acme", LATER)
    assert await old.find("acme", LATER) is None
    assert await old.content("acme", again) is None


async def test_a_file_is_never_joined_from_its_pieces() -> None:
    """Which would be a single step of the loop as long as the file is large, and hold it twice."""
    size = 12 * MIB

    class Files:
        async def find(self, tenant: str, id: str) -> Any:
            return StoredFile(id, tenant, "report.pdf", "user_data", size, 0, None, "k")

        async def read(self, tenant: str, id: str) -> AsyncIterator[bytes]:
            for _ in range(size // SMALL):
                yield bytes(SMALL)

    part = {"type": "file", "file": {"file_id": "file-" + "0" * 32}}
    request = ChatRequest("m", messages=({"role": "user", "content": [part]},))
    files: Any = Files()
    reading = HeavyReads().of("acme")
    tracemalloc.start()
    try:
        await attached_files.attach(request, files, "acme", reading, most_bytes=2 * size)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        reading.release()
    assert peak < 1.5 * size * 4 / 3
