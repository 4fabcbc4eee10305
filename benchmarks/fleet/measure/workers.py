"""A gateway of several workers at a real Redis: its commands and its processor time, of which renewals are a part."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from typing import NamedTuple

import aiohttp
from redis import Redis

from benchmarks.load import question
from benchmarks.processes import free_port, running, thread_seconds, wait_for
from benchmarks.proxies import start_gateway

WORKERS, RATE = 4, 150.0
TENANTS = (10, 1000)
CORES = {0, 1}


class Taken(NamedTuple):
    """Of Redis, of a second: commands that it ran, with those of scripts, and processor seconds."""

    commands: float
    busy: float


def workers(program: str, seconds: float) -> None:
    """What Redis does each second for a gateway that idles, and for each thousand requests."""
    print(
        f"\n| Redis, {WORKERS} workers: budgets | idle: commands a second, those of scripts too | of a core ",
        end="",
    )
    print(
        f"| {RATE:.0f} requests/s: commands a second | of a core | 1,000 requests |\n|--:|--:|--:|--:|--:|--:|"
    )
    for tenants in TENANTS:
        with ExitStack() as stack:
            port, upstream = free_port(), free_port()
            argv = [program, "--port", str(port), "--save", "", "--appendonly", "no"]
            pid = stack.enter_context(running(argv, cores=CORES))
            argv = [sys.executable, "-m", "benchmarks.fleet.upstream", str(upstream)]
            stack.enter_context(running(argv, cores=CORES))
            wait_for(upstream, "/v1/engine/state")
            store = f"redis://127.0.0.1:{port}/0"
            gateway = start_gateway(
                stack, upstream, cores=CORES, workers=WORKERS, store=store, more=_policy(tenants)
            )
            server = stack.enter_context(Redis(port=port))
            time.sleep(3.0)
            idle = _watch(server, pid, lambda: time.sleep(seconds))
            asyncio.run(_ask(gateway.port, tenants, 2.0))
            busy = _watch(server, pid, partial(asyncio.run, _ask(gateway.port, tenants, seconds)))
        print(f"| {tenants:,} | {idle.commands:.0f} | {idle.busy:.2%} ", end="")
        print(f"| {busy.commands:.0f} | {busy.busy:.2%} | {busy.busy / RATE * 1e6:.0f} ms |", flush=True)


def _policy(tenants: int) -> Mapping[str, object]:
    return {
        "tenants": {
            f"t{number}": {"tier": "pro", "budget": {"usd_per_month": 1e6}} for number in range(tenants)
        },
        "keys": [
            {
                "id": f"k{number}",
                "sha256": sha256(f"tg-{number}".encode()).hexdigest(),
                "tenant": f"t{number}",
            }
            for number in range(tenants)
        ],
    }


def _watch(server: Redis, pid: int, during: Callable[[], object]) -> Taken:
    def now() -> tuple[float, float, float]:
        stats = server.info("stats")
        assert isinstance(stats, dict)
        return time.perf_counter(), stats["total_commands_processed"], thread_seconds(pid)

    before = now()
    during()
    seconds, commands, busy = (one - other for one, other in zip(now(), before, strict=True))
    return Taken(commands / seconds, busy / seconds)


async def _ask(port: int, tenants: int, seconds: float) -> None:
    """Of all tenants in turn, at an even rate."""
    body, url = question("static", stream=False), f"http://127.0.0.1:{port}/v1/chat/completions"

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        head = {"authorization": f"Bearer tg-{number % tenants}", "content-type": "application/json"}
        async with session.post(url, data=body, headers=head) as answer:
            if answer.status != 200:
                raise SystemExit(f"{answer.status}: {await answer.text()}")
            await answer.read()

    began, tasks = time.perf_counter(), []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for number in range(int(RATE * seconds)):
            if (wait := began + number / RATE - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(one(session, number)))
        await asyncio.gather(*tasks)
