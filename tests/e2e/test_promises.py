"""What limits promise, over random stories told to three gateways that share a Redis: neither a budget nor a strict
limit is ever overspent, a limit of tokens a minute at most twice over, and neither a place nor a reserved dollar, nor a
block of the engine behind them, is lost.

One story takes half a minute and more, as a dead worker's places are free after 10 s; TOLLGATE_PROMISES=N tells N of
them, and six have each promise once with each answer to a store that is away. What is drawn follows from a story's
number, what processes and sockets make of it does not.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import asyncio as redis

from benchmarks.attacks.frame import MALLORY, Gateway, Rig
from tests.e2e.billing_upstream import NATURAL, PROMPT, BillingUpstream
from tests.engine.live import EngineServer, eventually
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

STORIES = int(os.environ.get("TOLLGATE_PROMISES", "1"))
GATEWAYS = 3
SENTENCES = 36
"""Requests of one story."""
BUDGET = 1.5
"""US dollars a month; a token costs a tenth of a cent, so that a story spends all of it."""
PLACES = 6
TOKEN_NANO = 1_000_000
DAY = 1_500
"""Tokens a day."""
MINUTE = 700
"""Tokens a minute, of which a story uses more."""
PROMISES = ("budget", "strict", "minute")
COUNTERS = {"budget": "dollars:month", "strict": "tokens:day", "minute": "tokens:60s"}


def limits(promise: str) -> dict[str, Any]:
    quotas: dict[str, Any] = {"concurrent_requests": PLACES}
    match promise:
        case "budget":
            return {"quotas": quotas, "budget": {"usd_per_month": BUDGET}}
        case "strict":
            return {"quotas": {**quotas, "tokens_per_day": DAY, "strict": True}}
        case _:
            return {"quotas": {**quotas, "tokens_per_minute": MINUTE}}


def policy(rig: Rig, url: str, engine: str, store: str, on_failure: str, promise: str) -> dict[str, Any]:
    targets = [{"backend": "up", "model": "first"}]
    return {
        **rig.policy(
            models={
                "m": {
                    "targets": targets,
                    "fallbacks": ["spare"],
                    "retry": {"attempts": 2, "backoff": "10ms"},
                    "timeouts": {"total": "20s"},
                },
                "spare": {"targets": [{"backend": "up", "model": "second"}]},
                "own": {"targets": [{"backend": "engine", "model": "demo"}]},
            },
        ),
        "backends": {
            "up": {"kind": "openai", "base_url": url, "breaker": {"failures": 1000}},
            "engine": {"kind": "engine", "base_url": engine},
        },
        "prices": {
            "demo": {"input": 0.0, "output": 0.0},
            **{name: {"input": 1000.0, "output": 1000.0} for name in ("first", "second")},
        },
        "tenants": {"mallory": limits(promise)},
        "guards": {"secrets": {"kind": "secrets", "on": ["output"], "action": "block"}},
        "store": store,
        "on_store_failure": on_failure,
    }


class Story:
    """Random, but for how long things take."""

    def __init__(self, number: int, gateways: list[Gateway], server: RedisServer) -> None:
        self._chance = random.Random(number)
        self._gateways = gateways
        self._server = server
        self.killed = 0
        self.answers: dict[str, int] = {}

    def __str__(self) -> str:
        return f"{self.answers}, {self.killed} killed"

    async def tell(self) -> None:
        asked = []
        for number in range(SENTENCES):
            asked.append(asyncio.create_task(self._ask(number)))
            match self._chance.randrange(18):
                case 0:
                    await self._stall(self._chance.uniform(0.1, 1.0))
                case 1:
                    self._server.kill()
                    await asyncio.sleep(self._chance.uniform(0, 0.3))
                    await asyncio.to_thread(self._server.start)
                case 2 if self.killed < 2:
                    self.killed += 1
                    for worker in self._chance.choice(self._gateways).workers:
                        os.kill(worker, signal.SIGKILL)
                case _:
                    await asyncio.sleep(self._chance.uniform(0, 0.12))
        await asyncio.gather(*asked)

    async def _stall(self, seconds: float) -> None:
        assert self._server.process is not None
        self._server.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self._server.process.send_signal(signal.SIGCONT)

    async def _ask(self, number: int) -> None:
        chance = random.Random(self._chance.random())
        own = chance.random() < 0.2
        does = chance.choice(["go", "go", "slow", "break", "refuse", "secret", "slow break"])
        body: dict[str, Any] = {
            "model": "own" if own else "m",
            "stream": chance.random() < 0.5,
            "messages": [
                {
                    "role": "user",
                    "content": f"{number}: please {does}, and take all the words you need for it",
                }
            ],
        }
        if chance.random() < 0.5:
            body["max_tokens"] = chance.choice([5, 30, 200])
        if chance.random() < 0.25:
            body["n"] = chance.choice([2, 3])
        headers = {"authorization": f"Bearer {MALLORY}"}
        if chance.random() < 0.2:
            headers["x-tollgate-deadline"] = f"{chance.uniform(0.05, 0.6):.2f}s"
        patience = chance.uniform(0.02, 0.5) if chance.random() < 0.3 else 60.0
        gateway = chance.choice(self._gateways)
        what = "left"
        with suppress(TimeoutError, httpx.TransportError):
            async with asyncio.timeout(patience):
                answer = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
                what = str(answer.status_code)
        self.answers[what] = self.answers.get(what, 0) + 1


async def counters(url: str, promise: str) -> tuple[int, int, int]:
    """Tokens used, tokens held, and places taken by gateways that live. What a minute has used is gone after it: 0."""
    client = redis.Redis.from_url(url, decode_responses=True)
    try:
        counter, places = [
            await client.hgetall(f"{{tollgate}}:quota:tenant:mallory:{key}")  # type: ignore[misc]
            for key in (COUNTERS[promise], "concurrent:now")
        ]
        alive = await client.zrangebyscore(
            "{tollgate}:quota:instances", int(time.time() * 1000) - 10_000, "+inf"
        )
        held = sum(int(value) for field, value in counter.items() if field.startswith("p:"))
        taken = sum(int(value) for field, value in places.items() if field.removeprefix("p:") in alive)
        unit = TOKEN_NANO if promise == "budget" else 1
        return int(counter.get("used", 0)) // unit, held // unit, taken
    finally:
        await client.aclose()


@pytest.mark.parametrize("number", range(STORIES), ids=lambda number: f"story[{number}]")
async def test_promises_hold_in_every_story(redis_program: str, tmp_path: Path, number: int) -> None:
    promise, on_failure = PROMISES[number // 2 % 3], ("closed", "local")[number % 2]
    upstream = BillingUpstream()
    async with Rig() as rig, upstream.serving() as url:
        folder = rig.folder / "redis"
        folder.mkdir()
        server = RedisServer(redis_program, folder)
        server._command += ["--appendonly", "yes", "--appendfsync", "always"]
        server.start()
        try:
            with EngineServer("demo", log=tmp_path / "engine.log") as engine:
                made = policy(rig, url, engine.url, server.url, on_failure, promise)
                gateways = [await rig.gateway(made) for _ in range(GATEWAYS)]
                story = Story(number, gateways, server)
                await story.tell()
                used, held, taken = await settled(server.url, promise, dead=story.killed > 0)
                await asyncio.to_thread(check_engine, engine)
            told = f"{story}, {promise}, {on_failure}: billed {upstream.billed}, counted {used}, held {held}"
            # With `local` a process may not know what the others let in within the last second.
            unknown = PLACES * (PROMPT + NATURAL) if on_failure == "local" else 0
            assert taken == 0, f"{taken} places are lost: {told}"
            assert held == 0 or story.killed, f"{held} tokens are held for ever: {told}"
            assert story.answers.get("200"), told
            if promise == "minute":
                most = upstream.most_within(60)
                assert most <= 2 * MINUTE + unknown, f"{most} tokens in a minute of {MINUTE}: {told}"
                return
            most = (round(BUDGET * 1e9 / TOKEN_NANO) if promise == "budget" else DAY) + unknown
            assert used + held <= most, f"more than the promised {most} is counted: {told}"
            assert upstream.billed <= most, f"more than the promised {most} is billed: {told}"
            assert upstream.billed <= used + held, f"billed and not counted: {told}"
        finally:
            server.kill()


def check_engine(engine: EngineServer) -> None:
    """Nothing runs for those who have left or whose gateway has died, and every block is back."""
    eventually(lambda: engine.state()["running"] == engine.state()["waiting"] == 0)
    cache = engine.state()["kv_cache"]
    assert cache["blocks_free"] + cache["blocks_cached"] == cache["blocks_total"]


async def settled(url: str, promise: str, *, dead: bool) -> tuple[int, int, int]:
    """The counters, once nothing is under way any more, or after a minute; what the dead held stays."""
    deadline, still = time.monotonic() + 60, 0
    before: tuple[int, int, int] | None = None
    while True:
        found = await counters(url, promise)
        still = still + 1 if found == before else 0
        over = found[2] == 0 and (found[1] == 0 or dead) and still >= 10
        if over or time.monotonic() > deadline:
            return found
        before = found
        await asyncio.sleep(0.2)
