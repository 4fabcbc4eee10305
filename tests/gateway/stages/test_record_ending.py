from __future__ import annotations

import asyncio
import logging
import re
from contextlib import aclosing

import pytest

from gateway import errors
from gateway.observe.events import FACTS, KEYS
from gateway.observe.receipts import Receipts
from gateway.stages.record import Observers, record
from gateway.stores.memory import MemoryStore
from gateway.types import Call, Chunk, Chunks
from tests.fakes import a_call

pytestmark = pytest.mark.anyio

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SOUND = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class Answer:
    """The next handler: one chunk, then an error if there is one."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.headers: dict[str, str] = {}
        self.closed = False

    async def __call__(self, call: Call) -> Chunks:
        self.headers = dict(call.headers)
        try:
            yield Chunk(delta={"content": "Hi"})
            if self.error:
                raise self.error
        finally:
            self.closed = True


async def passed(call: Call, answer: Answer | None = None) -> str:
    """The traceparent that the next handler got."""
    answer = answer or Answer()
    receipts = Receipts(MemoryStore())
    async with aclosing(record(Observers(receipts=receipts))(answer)(call)) as chunks:
        async for _ in chunks:
            pass
    await receipts.aclose()
    return answer.headers["traceparent"]


async def test_a_callers_trace_is_continued_with_a_span_of_our_own() -> None:
    for flags in ("00", "01", "ff"):
        sent = await passed(a_call(headers={"traceparent": f"00-{TRACE}-{SPAN}-{flags}"}))
        assert SOUND.fullmatch(sent)
        assert sent.startswith(f"00-{TRACE}-")
        assert sent.endswith(f"-{flags}")
        assert SPAN not in sent


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f" 00-{TRACE}-{SPAN}-01",
    ],
)
async def test_what_is_no_trace_begins_a_new_one(parent: str) -> None:
    sent = [await passed(a_call(headers={"traceparent": parent})) for _ in range(2)]
    assert all(SOUND.fullmatch(one) for one in sent)
    assert TRACE not in sent[0]
    assert sent[0][3:35] != sent[1][3:35]


async def test_without_a_header_a_trace_begins_and_others_are_kept() -> None:
    answer = Answer()
    assert SOUND.fullmatch(await passed(a_call(headers={"x-request-id": "req_1"}), answer))
    assert answer.headers["x-request-id"] == "req_1"


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, 200), (errors.UpstreamFailed("x"), 502), (ValueError("x"), 500), (asyncio.CancelledError(), 499)],
    ids=repr,
)
async def test_the_receipt_and_the_log_tell_the_outcome(
    caplog: pytest.LogCaptureFixture, error: BaseException | None, status: int
) -> None:
    receipts = Receipts(MemoryStore())
    call = a_call(headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
    with caplog.at_level(logging.INFO, "gateway.requests"):
        try:
            async for _ in record(Observers(receipts=receipts))(Answer(error))(call):
                pass
        except BaseException as caught:
            assert caught is error
    await asyncio.wait_for(asyncio.to_thread(receipts._writer.flush), 300)
    kept = await receipts.find("acme", "req_test")
    assert kept is not None
    told = kept["stages"]["trace"]
    assert (told["trace_id"], told["status"]) == (TRACE, status)
    assert 0 <= told["seconds"] < 1
    [line] = [one for one in caplog.records if one.name == "gateway.requests"]
    words = {
        200: "",
        502: " upstream_error tenant=acme backend=-",
        500: " internal_error tenant=acme backend=-",
    }
    suffix = words.get(status, " client_left tenant=acme backend=-")
    assert re.fullmatch(rf"req_test m {status} \d+\.\d ms{suffix}", line.getMessage())
    assert line.levelno == {502: logging.WARNING, 500: logging.ERROR}.get(status, logging.INFO)
    facts = getattr(line, FACTS)
    assert tuple(facts) == ("event", *KEYS["request"])
    assert (facts["tenant"], facts["key_id"], facts["trace_id"]) == ("acme", "k", TRACE)
    assert (facts["status"], facts["error"]) == (status, suffix.partition(" tenant")[0].strip() or None)
    assert "Hello" not in str(record.__dict__)
    await receipts.aclose()


async def test_a_reader_that_leaves_closes_what_is_behind() -> None:
    receipts, answer, call = Receipts(MemoryStore()), Answer(), a_call()
    chunks = record(Observers(receipts=receipts))(answer)(call)
    await anext(chunks)
    await chunks.aclose()
    assert answer.closed
    assert call.receipt.notes["trace"]["status"] == 499
    await receipts.aclose()
