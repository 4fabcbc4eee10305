"""Whole benchmarks over real sockets."""

from __future__ import annotations

import asyncio
import io
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from gateway.lab.bench.apis import APIS
from gateway.lab.bench.arrivals import Arrivals, Rate
from gateway.lab.bench.conversations import Drawn, Given, Traced, Workload
from gateway.lab.bench.errors import BenchError
from gateway.lab.bench.lengths import Lengths
from gateway.lab.bench.load import Extent, Load
from gateway.lab.bench.sample import Sample
from gateway.lab.bench.server import Server
from gateway.lab.bench.session import Knee, Plan, Report, Session
from gateway.lab.bench.slo import Slo
from gateway.lab.bench.summary import Result
from gateway.lab.bench.trace import Arrival
from gateway.lab.progress import Progress
from tests.fakes import (
    DONE,
    Action,
    FakeUpstream,
    Script,
    answer_events,
    completion,
    delta,
    head,
    reply,
    sse,
    stream,
    usage_event,
)

pytestmark = pytest.mark.anyio

ANSWER = stream(*answer_events("one", " two"))
CONSTANT = Arrivals("constant", 1)
DRAWN = Drawn(Lengths(5, 5), Lengths(2, 2))


def server(upstream: FakeUpstream, name: str = "s", api: str = "chat", **more: Any) -> Server:
    more = {"model": "m", **more}
    return Server(name, f"{upstream.base_url}/{APIS[api].path}", APIS[api], **more)


async def bench(servers: Sequence[Server], *loads: Load, **more: Any) -> Report:
    options: dict[str, Any] = {
        "extent": Extent(20),
        "workload": DRAWN,
        "slo": Slo({}),
        "per_word": 1.0,
        **more,
    }
    return await Session(Plan(servers, loads, **options), Progress(io.StringIO())).run()


def at(rate: float, concurrency: int | None = None) -> Load:
    return Load(concurrency, Rate.constant(rate), CONSTANT)


async def test_a_closed_loop_keeps_so_many_in_flight() -> None:
    async with FakeUpstream(ANSWER) as upstream:
        [result] = (await bench([server(upstream)], Load(4), extent=Extent(30, warm_up_requests=5))).results
        assert upstream.connections <= 4 + 1, "the check came before"
    told = result.summary()
    assert told["requests"] == {"counted": 30, "ok": 30, "failed": 0, "warm_up": 5, "interrupted": 0}
    assert told["tokens"]["output"]["mean"] == 3 and told["tokens"]["prompt"]["mean"] == 7
    assert told["tokens"]["per_chunk"] == 1.5 and told["tokens"]["counted_by_server"]
    assert told["finish"] == {"stop": 30} and told["slo"]["share"] == 1.0
    assert told["itl_ms"]["count"] == 30 and told["ttft_ms"]["count"] == told["tpot_ms"]["count"] == 30
    assert told["ttft_ms"]["p50"] <= told["e2e_ms"]["p50"]
    assert told["per_second"]["output_tokens"] == pytest.approx(3 * told["per_second"]["requests"])


async def test_an_open_loop_keeps_to_its_schedule() -> None:
    async with FakeUpstream(ANSWER) as upstream:
        [result] = (await bench([server(upstream)], at(200), extent=Extent(40))).results
    assert sorted(sample.intended for sample in result.counted) == pytest.approx([n / 200 for n in range(40)])
    assert all(sample.sent >= sample.intended for sample in result.counted), "nothing is sent before its time"


class Stalling:
    """A server that answers at once, and stands still for ``seconds`` once so many have asked."""

    def __init__(self, before: int, seconds: float) -> None:
        self.before = before
        self.seconds = seconds
        self.free = asyncio.Event()
        self.free.set()
        self.asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                top = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            length = int(top.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            self.asked += 1
            if self.asked == self.before:
                self.free.clear()
                asyncio.get_running_loop().call_later(self.seconds, self.free.set)
            await self.free.wait()
            [answer] = reply(completion())
            writer.write(answer)
        writer.close()


async def stalled(load: Load) -> list[Sample]:
    """Of a server that stands still for 1 s in the middle."""
    stalling = Stalling(before=50, seconds=1.0)
    listening = await asyncio.start_server(stalling.serve, "127.0.0.1", 0)
    async with listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1/chat/completions"
        one = Server("s", url, APIS["chat"], "m", stream=False)
        report = await bench([one], load, extent=Extent(200))
    [result] = report.results
    assert len(result.counted) == 200 and all(sample.ok for sample in result.counted)
    return result.counted


@pytest.mark.parametrize("most", [None, 1], ids=["any number of connections", "one connection"])
async def test_an_open_loop_shows_that_a_server_stood_still(most: int | None) -> None:
    """Of 100 requests a second, 50 come in the first half of the second: each waits for more than half of it."""
    waited = [sample.e2e for sample in await stalled(at(100, most))]
    assert sum(seconds > 0.5 for seconds in waited) >= 48
    assert max(waited) > 0.9


async def test_a_closed_loop_hides_that() -> None:
    """So that the test above can fail: this is what coordinated omission looks like."""
    waited = [sample.e2e for sample in await stalled(Load(1))]
    assert sum(seconds > 0.5 for seconds in waited) <= 5


async def test_a_client_that_is_late_says_so() -> None:
    """Latencies count from when a request was to be sent, also where the client is to blame."""
    async with FakeUpstream(ANSWER) as upstream:
        asyncio.get_running_loop().call_later(0.3, time.sleep, 0.4)
        [result] = (await bench([server(upstream)], at(100), extent=Extent(80))).results
    late = [sample for sample in result.counted if sample.lag > 0.1]
    assert len(late) >= 25 and all(sample.e2e >= sample.lag for sample in late)
    assert result.client()["is_late"] and result.client()["late_p99_ms"] > 100


@pytest.mark.deadlines
async def test_errors_are_told_apart() -> None:
    refused = reply({"error": {"code": "rate_limit_exceeded", "message": "slower"}}, status=429)
    scripts: list[Script] = [
        ANSWER,  # of the check
        refused,
        refused,
        reply({"error": {"message": "busy"}}, status=503),
        reply("oh no", status=500),
        stream(sse(delta("x")), Action.ABORT, whole=False),
        stream(sse(delta("x")), DONE[:4], whole=True),
        stream(sse(delta("x")), sse({"error": {"code": "server_error", "message": "fell over"}}), DONE),
        (head(200, {"content-type": "application/json", "content-length": "3"}) + b"{}}",),
        stream(sse(delta("x")), Action.HANG),
        ANSWER,
    ]
    async with FakeUpstream(*scripts) as upstream:
        [result] = (await bench([server(upstream)], Load(1), extent=Extent(10), timeout=0.5)).results
    told = result.summary()
    found = {(error["kind"], error["status"], error["code"]): error["count"] for error in told["errors"]}
    assert found == {
        ("refused", 429, "rate_limit_exceeded"): 2,
        ("overloaded", 503, None): 1,
        ("status", 500, None): 1,
        ("broken stream", None, None): 2,
        ("error event", None, "server_error"): 1,
        ("malformed", None, None): 1,
        ("timeout", None, None): 1,
    }
    assert told["errors"][0]["example"] == "slower"
    assert told["requests"]["failed"] == 9 and told["slo"]["share"] == 0.1
    assert told["e2e_ms"]["count"] == 1, "latencies are of those that succeeded"


async def test_a_server_that_is_gone_is_an_error_of_its_own() -> None:
    async with FakeUpstream(ANSWER) as upstream:
        one = server(upstream)
        running = asyncio.create_task(bench([one], at(50), extent=Extent(30)))
        await upstream.arrived(10)
        await upstream.stop()
        [result] = (await running).results
    kinds = Counter(sample.failure.kind for sample in result.counted if sample.failure)
    assert kinds["unreachable"] >= 10 and set(kinds) <= {"unreachable", "broken stream"}


async def test_goodput_is_what_kept_the_slo() -> None:
    slow = stream(*answer_events("one")[:2], 0.3, *answer_events("one")[2:])
    async with FakeUpstream(ANSWER, *[slow] * 5, *[ANSWER] * 6) as upstream:
        slo = Slo({"e2e": 0.25, "ttft": 60.0})
        [result] = (await bench([server(upstream)], Load(1), extent=Extent(10), slo=slo)).results
    told = result.summary()["slo"]
    assert told["share"] <= 0.5 and told["kept"]["ttft"] == 1.0 and told["kept"]["e2e"] == told["share"]
    assert told["met"] == sum(sample.e2e <= 0.25 for sample in result.counted)


async def test_servers_take_turns_and_get_the_same_lengths() -> None:
    order: list[str] = []

    class Noting(FakeUpstream):
        def took(self, request: Any) -> None:
            super().took(request)
            order.append(names[self])

    async with Noting(ANSWER) as one, Noting(ANSWER) as other:
        names = {one: "a", other: "b"}
        servers = [server(one, "a"), server(other, "b")]
        workload = Drawn(Lengths(3, 60), Lengths(1, 90))
        report = await bench(servers, Load(1), Load(2), extent=Extent(3), workload=workload, rounds=2)
    assert order == [*"ab", *"aaabbb" * 2, *"bbbaaa" * 2]
    assert [(str(one.load), one.server.name, len(one.counted)) for one in report.results] == [
        *(("1 at a time", "a", 6), ("1 at a time", "b", 6)),
        *(("2 at a time", "a", 6), ("2 at a time", "b", 6)),
    ]
    asked = [[request.json() for request in upstream.requests[1:]] for upstream in (one, other)]
    lengths = [
        [(len(body["messages"][0]["content"].split()), body["max_tokens"]) for body in each] for each in asked
    ]
    assert sorted(lengths[0]) == sorted(lengths[1])
    texts = [body["messages"][0]["content"] for each in asked for body in each]
    assert len(set(texts)) == len(texts), "none is in the other's prefix cache"


async def test_later_turns_have_the_answers_before_them() -> None:
    async with FakeUpstream(ANSWER) as upstream:
        workload = Drawn(Lengths(5, 5), Lengths(2, 2), turns=3)
        [result] = (
            await bench([server(upstream)], at(50), extent=Extent(4), workload=workload, think=0.05)
        ).results
        bodies = [request.json()["messages"] for request in upstream.requests[1:]]
    assert sorted(len(messages) for messages in bodies) == [1] * 4 + [3] * 4 + [5] * 4
    longest = max(bodies, key=len)
    assert [one["role"] for one in longest] == ["user", "assistant"] * 2 + ["user"]
    assert longest[1]["content"] == "one two"
    turns = {(sample.conversation, sample.turn): sample for sample in result.counted}
    for (conversation, turn), sample in turns.items():
        if turn:
            assert sample.intended >= turns[conversation, turn - 1].end + 0.045


async def test_a_trace_keeps_its_times() -> None:
    arrivals = [Arrival(0.0, 3, 2), Arrival(0.1, 3, 2), Arrival(0.1, 600, 2, (7, 8)), Arrival(0.3, 3, 2)]
    async with FakeUpstream(ANSWER) as upstream:
        extent = Extent(seconds=0.25)
        [result] = (
            await bench([server(upstream)], Load(traced=True), extent=extent, workload=Traced(arrivals))
        ).results
    assert sorted(sample.intended for sample in result.counted) == [0.0, 0.1, 0.1]


@pytest.mark.parametrize("load", [Load(2), at(100)], ids=str)
async def test_a_time_ends_it_and_its_warm_up_does_not_count(load: Load) -> None:
    async with FakeUpstream(ANSWER) as upstream:
        extent = Extent(seconds=0.3, warm_up_seconds=0.2)
        [result] = (await bench([server(upstream)], load, extent=extent)).results
    assert {sample.warm_up for sample in result.runs[0].samples if sample.intended < 0.2} == {True}
    assert all(0.2 <= sample.intended <= 0.5 for sample in result.counted) and result.counted


async def test_words_are_counted_as_the_server_counts_them() -> None:
    def counting(words: int) -> Script:
        return stream(sse(delta("x")), sse(usage_event(prompt_tokens=10 + 2 * words)), DONE)

    async with FakeUpstream(counting(8), counting(8), counting(264), counting(0)) as upstream:
        report = await bench(
            [server(upstream)],
            Load(1),
            per_word=None,
            extent=Extent(3),
            workload=Drawn(Lengths(110, 110), Lengths(1, 1)),
        )
        asked = [len(request.json()["messages"][0]["content"].split()) for request in upstream.requests]
    assert asked == [8, 8, 264, 50, 50, 50]
    assert (report.scale.per_word, report.scale.fixed) == (2.0, 10.0)


async def test_a_model_that_is_not_named_is_the_one_that_is_listed() -> None:
    async with FakeUpstream(ANSWER) as upstream:
        upstream.health = reply({"data": [{"id": "first"}]})
        [result] = (
            await bench([server(upstream, model="", headers={"authorization": "Bearer k"})], Load(1))
        ).results
        assert result.server.model == "first"
        assert {request.json()["model"] for request in upstream.requests} == {"first"}
        assert {one.headers["authorization"] for one in (*upstream.probes, *upstream.requests)} == {
            "Bearer k"
        }


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (reply({"error": {"message": "who are you?"}}, status=401), "who are you.*--key-env"),
        (reply({"error": {"message": "no such model"}}, status=404), "no such model.*--model"),
        (reply({"error": {"message": "no"}}, status=429), "without limits"),
        (stream(sse(delta("x"))), "ended without a finish reason"),
    ],
)
async def test_a_server_that_does_not_answer_is_said_at_once(script: Script, told: str) -> None:
    async with FakeUpstream(script) as upstream:
        with pytest.raises(BenchError, match=told):
            await bench([server(upstream)], Load(1))
        assert len(upstream.requests) == 1


async def test_a_server_that_is_not_there_is_said_at_once() -> None:
    async with FakeUpstream() as upstream:
        gone = server(upstream)
    for one in (gone, Server("s", gone.url, gone.api)):
        with pytest.raises(BenchError, match="is it running"):
            await bench([one], Load(1))


@pytest.mark.parametrize("listed", [{"data": []}, [], "no", {"data": [{"id": "cheap"}, {"id": "dear"}]}])
async def test_a_server_that_lists_no_model_or_several_is_said(listed: Any) -> None:
    async with FakeUpstream(ANSWER) as upstream:
        upstream.health = reply(orjson.dumps(listed))
        with pytest.raises(BenchError, match="name one by --model"):
            await bench([server(upstream, model="")], Load(1))


class Slots(Stalling):
    """A server with one place, which each request holds for ``seconds``."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                top = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                break
            await reader.readexactly(int(top.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
            now = asyncio.get_running_loop().time()
            self.until = max(now, self.until) + self.seconds
            await asyncio.sleep(self.until - now)
            [answer] = reply(completion())
            writer.write(answer)
        writer.close()

    until = 0.0


@pytest.mark.deadlines
async def test_the_knee_is_found() -> None:
    """One place of 100 ms has room for 10 a second: of 20 at 16 a second the last wait for 0.7 s, at 8 nobody waits."""
    slots = Slots(0, 0.1)
    listening = await asyncio.start_server(slots.serve, "127.0.0.1", 0)
    async with listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1/chat/completions"
        one = Server("s", url, APIS["chat"], "m", stream=False)
        knee = Knee(first=8, most=64, share=0.9, repeats=1, tolerance=0.5, arrivals=CONSTANT)
        report = await bench([one], knee=knee, extent=Extent(20), slo=Slo({"e2e": 0.6}))
    search = report.knees["s"]
    # A busy machine makes it lower, nothing makes it higher.
    assert search.failed is not None and 0 < search.held < search.failed <= 16
    assert search.held in search.trials and search.failed <= 1.5 * search.held
    assert {result.load.rate.last for result in report.results if result.load.rate} == set(search.trials)
    assert all(isinstance(result, Result) and result.counted for result in report.results)


async def test_prompts_of_ones_own_are_sent_as_they_are() -> None:
    from gateway.lab.bench.conversations import Conversation, Turn

    rows: Workload = Given([Conversation([Turn([{"type": "text", "text": "look"}], None)])])
    async with FakeUpstream(ANSWER) as upstream:
        await bench([server(upstream, extra={"temperature": 0})], Load(1), workload=rows, extent=Extent(2))
        body = upstream.requests[-1].json()
    assert body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "look"}]}]
    assert body["temperature"] == 0 and "max_tokens" not in body
