"""Guards' fast check in other processes: the same verdicts, an end to what takes too long, and room for others."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from gateway.children.process_pool import ProcessPool
from gateway.errors import BadRequest, Blocked, GuardUnavailable
from gateway.guards.guards import Guards
from gateway.guards.requests.screening import Screening
from gateway.guards.scanners.factory import build_scanners
from gateway.guards.scanners.offload import MAX_MATCHED_INLINE, MAX_SCORED_INLINE, Offload
from gateway.guards.scans.batch_scan import BatchScan
from gateway.guards.scans.inspection import Inspection
from gateway.observe.metrics import Metrics
from gateway.regex.linear import are_linear, steps
from gateway.sidecar.client import NoSidecar
from gateway.stages.guard_output import guard_output
from gateway.types import Call, Chunk, Chunks, Principal
from tests.fakes import a_call, policy
from tests.scanners import background_scans_of

pytestmark = pytest.mark.anyio

HOSTILE_PATTERN = r"\d+\d+\d+x"
HOSTILE_TEXT = "7" * 4000
LONG = "600s"
KINDS: dict[str, dict[str, Any]] = {
    "pii": {"checks": ["fast"]},
    "secrets": {},
    "topics": {"words": ["merger"], "patterns": [r"case-\d+"]},
    "injection": {"checks": ["fast"]},
    "toxicity": {"checks": ["fast"]},
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[ProcessPool]:
    pool = ProcessPool(2)
    yield pool
    await pool.aclose()


def guards(pool: ProcessPool | None, **configs: dict[str, Any]) -> Guards:
    rules = policy(guards={name: {"timeout": LONG, **config} for name, config in configs.items()})
    offloads = {name: Offload(config, pool) for name, config in rules.guards.items()} if pool else {}
    return Guards(rules, build_scanners(rules, NoSidecar(), {}), offloads)


def said(text: str, tenant: str = "acme") -> Call:
    return a_call(messages=({"role": "user", "content": text},), principal=Principal("k", tenant))


async def screened(mine: Guards, text: str, tenant: str = "acme") -> None:
    await Screening(said(text, tenant), mine.of(tenant).input, Metrics()).run()


@pytest.mark.parametrize("kind", KINDS)
async def test_long_texts_are_read_elsewhere_with_the_same_findings(pool: ProcessPool, kind: str) -> None:
    long = MAX_MATCHED_INLINE if kind in ("pii", "secrets", "topics") else MAX_SCORED_INLINE
    telling = (
        "mail ann@example.org of case-17, the merger, password: hunter2x! and kill all of those idiots. "
    )
    filler = "What is the capital of Norway, and how far is it from here by train? "
    text = (filler * (long // len(filler)) + telling) * 3
    found = []
    for where in (pool, None):
        (guard,) = guards(where, **{kind: {**KINDS[kind], "action": "flag"}}).of("acme").input_flags
        batch = BatchScan(Inspection(guard, "input", Metrics(), said("")), [(text, "user"), ("hi", "user")])
        assert batch.is_offloaded is (where is not None)
        await batch.look()
        found.append(batch.findings)
        short = BatchScan(Inspection(guard, "input", Metrics(), said("")), [("a few words", "user")])
        assert not short.is_offloaded
    assert found[0] == found[1] and (kind in ("injection", "toxicity") or found[0][0])


async def test_a_pattern_that_takes_too_long_is_ended_and_told(pool: ProcessPool) -> None:
    mine = guards(pool, topics={"patterns": [HOSTILE_PATTERN], "timeout": "1s"})
    await screened(mine, "a few words")
    rounds = 0

    async def turns() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0.01)

    others = asyncio.create_task(turns())
    with pytest.raises(
        GuardUnavailable, match=r"'topics' could not judge this request .no verdict within 1 s"
    ):
        await screened(mine, HOSTILE_TEXT)
    others.cancel()
    assert rounds > 10  # on the event loop, while the pattern was at work
    await screened(mine, "a few words")


async def test_what_cannot_be_judged_in_time_passes_where_the_guard_says_so(pool: ProcessPool) -> None:
    rules = {"patterns": [HOSTILE_PATTERN], "timeout": "500ms", "on_error": "allow"}
    call, mine = said(HOSTILE_TEXT), guards(pool, topics=rules)
    await Screening(call, mine.of("acme").input, Metrics()).run()
    assert call.receipt.notes["guard_input"]["scanned"] is False
    assert call.receipt.notes["guard_input"]["guards"]["topics"]["unscanned"] == "no verdict within 0.5 s"


async def test_one_tenant_leaves_a_process_to_the_others() -> None:
    pool = ProcessPool(2)
    mine = guards(pool, topics={"patterns": [HOSTILE_PATTERN]})
    hostile = [asyncio.create_task(screened(mine, HOSTILE_TEXT, "mallory")) for _ in range(8)]
    for _ in range(3):
        await screened(mine, "a few words", "alice")
    assert not hostile[0].done()
    for task in hostile:
        task.cancel()
    await asyncio.gather(*hostile, return_exceptions=True)
    await pool.aclose()


async def test_long_texts_of_one_tenant_do_not_starve_anothers() -> None:
    pool = ProcessPool(1)
    mine = guards(pool, toxicity={"checks": ["fast"]})
    words = "What is the capital of Norway, and how far is it from here by train? "
    many = [asyncio.create_task(screened(mine, words * 2000, "mallory")) for _ in range(5)]
    await asyncio.sleep(0)
    await screened(mine, words * 200, "alice")
    assert not any(task.done() for task in many)  # each has ten times as many parts
    for task in many:
        task.cancel()
    await asyncio.gather(*many, return_exceptions=True)
    await pool.aclose()


async def test_a_process_that_is_killed_leaves_one_text_unjudged() -> None:
    pool = ProcessPool(1)
    mine = guards(pool, topics={"patterns": [r"[a-z]+\d+x"]})
    await screened(mine, "a few words")
    pid = await pool.run("acme", 60, os.getpid)
    reading = asyncio.create_task(
        screened(guards(pool, topics={"patterns": [HOSTILE_PATTERN]}), HOSTILE_TEXT)
    )
    before = _ticks(pid)
    while _ticks(pid) < before + 20:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(GuardUnavailable, match="unavailable"):
        await reading
    await screened(mine, "a few words")
    await pool.aclose()


def _ticks(pid: int) -> int:
    """Of the processor's time that it has had (proc(5): ``utime``)."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


async def test_a_process_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.children.process_pool._STUCK", 1)
    monkeypatch.setattr("gateway.children.process_pool._START", 0.2)
    pool = ProcessPool(1)
    pid = await pool.run("acme", 60, os.getpid)
    os.kill(pid, signal.SIGSTOP)
    mine = guards(pool, topics={"patterns": [r"[a-z]+\d+x"], "timeout": "100ms"})
    with pytest.raises(GuardUnavailable, match=r"no verdict within 0.1 s"):
        await screened(mine, "a few words")
    assert await pool.run("acme", 60, os.getpid) != pid
    await pool.aclose()


async def test_short_texts_and_proven_patterns_start_no_process() -> None:
    mine = guards(ProcessPool(0), **KINDS)  # which nobody would get
    await screened(mine, "a few words " * 100)


async def test_what_a_text_is_full_of_is_bounded_and_told(
    pool: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.guards.scans.batch_scan.MAX_FINDINGS", 5000)
    mine = guards(pool, pii={"checks": ["fast"], "action": "mask"})
    with pytest.raises(BadRequest, match=r"'pii' has more than 5000 findings in this request. Send less"):
        await screened(mine, "a@b.io " * 5001)


async def test_one_finding_is_enough_to_refuse(pool: ProcessPool) -> None:
    metrics = Metrics()
    mine = guards(pool, pii={"checks": ["fast"], "action": "block"})
    call = said("ann@example.org " + "word " * 400_000)
    with pytest.raises(Blocked):
        await Screening(call, mine.of("acme").input, metrics).run()
    assert call.receipt.notes["guard_input"]["guards"]["pii"]["scans"] == 1


async def answered(mine: Guards, *words: str) -> list[Chunk]:
    async def model(call: Call) -> Chunks:
        for word in words:
            yield Chunk(0, {"content": word})
            await asyncio.sleep(0)
        yield Chunk(0, {}, "stop")

    async with aclosing(guard_output(mine, background_scans_of(), Metrics())(model)(a_call())) as chunks:
        return [chunk async for chunk in chunks]


@pytest.mark.parametrize("stream", ["hold", "windowed"])
async def test_streams_are_read_elsewhere_too(pool: ProcessPool, stream: str) -> None:
    rules = {"on": ["output"], "patterns": [r"[a-z]+\d+x"], "action": "redact", "stream": stream}
    assert not are_linear(rules["patterns"])
    mine = guards(pool, topics={**rules, "window": 16, "interval": 8})
    chunks = await answered(mine, *("so " * 12), *"it is ab12x or", *(" so" * 12))
    text = "".join((chunk.delta or {}).get("content", "") for chunk in chunks)
    assert text == "so " * 12 + "it is [PATTERN_0] or" + " so" * 12


async def test_long_answers_are_read_elsewhere(pool: ProcessPool) -> None:
    rules = {"on": ["output"], "action": "redact", "stream": "hold", "checks": ["fast"]}
    text = "so " * MAX_MATCHED_INLINE + "to ann@example.org"
    chunks = await answered(guards(pool, pii=rules), text)
    assert "".join((one.delta or {}).get("content", "") for one in chunks) == "so " * MAX_MATCHED_INLINE + (
        "to [EMAIL_ADDRESS]"
    )
    none = ProcessPool(0, queue_timeout=0.01)
    assert (await answered(guards(none, pii=rules), text))[-1].revocation is not None
    assert (await answered(guards(none, pii=rules), text[-100:]))[-1].revocation is None


@pytest.mark.parametrize("stream", ["hold", "windowed", "optimistic"])
async def test_a_hostile_answer_is_cut(pool: ProcessPool, stream: str) -> None:
    rules = {"on": ["output"], "patterns": [HOSTILE_PATTERN], "stream": stream, "timeout": "500ms"}
    chunks = await answered(guards(pool, topics=rules), HOSTILE_TEXT)
    assert chunks[-1].revocation is not None
    assert chunks[-1].revocation["reason"] == "guard_unavailable"


@pytest.mark.parametrize(
    "pattern",
    [
        *(r"case-\d+", r"\bfalcon\b", r"\b\d{3}-\d{2}-\d{4}\b", "(?i)(?:merger|acquisition) of ", ".*"),
        *(r"(?<!a)b(?=c)", "[a-z]{1,16}!", "a{3,}", r"falcon\w*?"),
    ],
)
def test_patterns_that_are_proven_linear(pattern: str) -> None:
    assert are_linear([pattern])


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            HOSTILE_PATTERN,
            "a*b",
            r"project\s+falcon",
            r"\w+\b",
            r"(case-\d+)",
            "(?=a*)b",
            "[a-z]{1,30}@[a-z]{1,30}x",
        ),
        *("(?:a|b|ab){9}", r"(\w)\1", "a*+b", "(?>a*)b", "(a)?(?(1)b|c)", ".{300}x", "(?:a?){20}b"),
    ],
)
def test_patterns_that_are_not(pattern: str) -> None:
    assert steps(pattern) is None and not are_linear(["x", pattern])


def test_many_patterns_are_not_proven_together() -> None:
    assert are_linear(["[a-z]{1,60}!"] * 10) and not are_linear(["[a-z]{1,60}!"] * 100)
