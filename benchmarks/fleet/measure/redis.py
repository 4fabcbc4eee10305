"""A real Redis: what reservations cost it, and workers that ask what has changed."""

from __future__ import annotations

import asyncio
import secrets
import time
from pathlib import Path

import orjson

from benchmarks.processes import thread_seconds
from gateway.quota.limits import Amounts, Limit, Limits, Quantity, Scope, Window
from gateway.quota.quotas import open_counters
from gateway.quota.redis import RedisCounters
from gateway.quota.spread import SpreadCounters
from gateway.quota.store_outage import FailoverCounters
from tests.redis_server import RedisServer

Counters = FailoverCounters | SpreadCounters | RedisCounters
FOUR: tuple[tuple[Scope, Quantity, Window], ...] = (
    ("key", "requests", "minute"),
    ("key", "tokens", "minute"),
    ("tenant", "tokens", "day"),
    ("tenant", "dollars", "month"),
)


async def redis(folder: Path, program: str, requests: int) -> None:
    """Processor time of the server: of a reservation and its settlement, and of a worker's renewal each second."""
    server = RedisServer(program, folder)
    server.start()
    try:
        counters = open_counters(server.url)
        assert server.process is not None
        pid = server.process.pid
        print("\n| Redis: limits of a request | tenants | µs of the server | µs of the gateway |")
        print("|---|--:|--:|--:|")
        for name, rules in (("4: key and tenant", FOUR), ("1: a budget", FOUR[3:])):
            limits = [
                Limits(
                    tuple(
                        Limit(scope, f"{name[0]}-{i}", what, window, 2**45) for scope, what, window in rules
                    ),
                    group=f"{name[0]}-{i}",
                )
                for i in range(1000)
            ]
            await _reserve(counters, limits, 64, 500)
            cpu, own = thread_seconds(pid), time.process_time()
            await _reserve(counters, limits, 64, requests)
            cpu, own = thread_seconds(pid) - cpu, time.process_time() - own
            print(f"| {name} | 1,000 | {cpu / requests * 1e6:.0f} | {own / requests * 1e6:.0f} |", flush=True)
        await counters.aclose()
        print(
            "\n| Redis: counters changed | µs of the server: who reads | who is told | µs of a worker | kB |"
        )
        print("|--:|--:|--:|--:|--:|")
        for changed in (0, 100, 1000, 4000):
            await _renewals(server.url, pid, changed)
    finally:
        server.kill()


async def _reserve(counters: Counters, limits: list[Limits], at_once: int, requests: int) -> None:
    left = iter(range(requests))
    amounts = Amounts(1, 100, 1000, 1)

    async def some() -> None:
        for number in left:
            name = secrets.token_hex(8)
            which = limits[number % len(limits)]
            await counters.reserve(name, which, amounts)
            counters.settle(name, which, amounts)

    await asyncio.gather(*(some() for _ in range(at_once)))


async def _renewals(url: str, pid: int, changed: int, rounds: int = 200) -> None:
    """As a worker asks each second what has changed: first those who read it, then those who are told."""
    counters = RedisCounters(url)
    await counters._link.ask(lambda client: client.flushall(), 5.0)
    limits = [
        Limits((Limit("tenant", f"r{changed}-{i}", "dollars", "month", 2**45),), group=f"{i}")
        for i in range(max(changed, 1))
    ]
    if changed:
        await _reserve(counters, limits, 64, changed)
        await asyncio.sleep(0.3)
    since = str(int(time.time() * 1000) - 60_000)
    size, took = 0, []
    # A report that is not to be shared is one that each reads.
    for shared in (0.0, 3600.0):
        await _renew(counters, since, shared)
        await asyncio.sleep(0.01)
        server, own = thread_seconds(pid), time.process_time()
        for _ in range(rounds):
            size = await _renew(counters, since, shared)
        took += [thread_seconds(pid) - server, time.process_time() - own]
    reading, _, told, worker = (f"{one / rounds * 1e6:.0f}" for one in took)
    print(f"| {changed:,} | {reading} | {told} | {worker} | {size / 1000:.1f} |", flush=True)
    await counters.aclose()


async def _renew(counters: RedisCounters, since: str, shared: float) -> int:
    """Bytes of the report."""
    command = counters._commands.renewal(since, shared)
    renewed, _, _, _, report = (await counters._run([command], probing=True))[0]
    counters._commands.renewed = int(renewed)
    counters._note(orjson.loads(report))
    return len(report)
