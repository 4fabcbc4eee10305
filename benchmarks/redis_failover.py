"""Budgets over failovers of Redis, and what a reservation takes: one server, Sentinel, clusters of 3 and 6 masters.

    python -m benchmarks.redis_failover [--requests 10000] [--seconds 3]

Several gateways (their counters, each with links of its own, in one process) send requests of tenants with budgets to
real servers on this machine, while masters are killed (``kill -9``), made to sleep (``DEBUG SLEEP``) or emptied
(``FLUSHALL``), one after the other. The table has what was let in beyond a budget: nothing may be.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from redis.crc import key_slot
from redis.exceptions import RedisError

from gateway.errors import Overloaded
from gateway.quota.limits import Amounts, Limit, Limits
from gateway.quota.quotas import open_counters
from gateway.quota.spread import SpreadCounters
from gateway.quota.store_outage import FailoverCounters
from gateway.stores.redis_parts import TAGS
from tests.redis_server import RedisServer
from tests.redis_topologies import RedisCluster, RedisNode, SentinelSet

GATEWAYS, TENANTS, COST = 3, 60, 10
Counters = FailoverCounters | SpreadCounters
Failure = Literal["kill -9", "DEBUG SLEEP", "FLUSHALL"]


@dataclass
class Place:
    """Where budgets are kept, and what can fail there."""

    name: str
    url: str
    master: Callable[[int], RedisNode]
    """Of the n-th failure."""
    mend: Callable[[], object]


@contextmanager
def single(program: str, folder: Path) -> Iterator[Place]:
    server = RedisServer(program, folder)
    server.start()
    try:
        yield Place(
            "one server", server.url, lambda _: RedisNode(program, folder / "x", server.port), lambda: None
        )
    finally:
        server.kill()


@contextmanager
def sentinel(program: str, folder: Path) -> Iterator[Place]:
    servers = SentinelSet(program, folder, "enable-debug-command yes")
    try:
        servers.start()
        yield Place("Sentinel", servers.url, lambda _: servers.master, servers.mend)
    finally:
        servers.kill()


@contextmanager
def cluster(program: str, folder: Path, masters: int) -> Iterator[Place]:
    servers = RedisCluster(program, folder, masters, "enable-debug-command yes")
    try:
        servers.start()

        def master(number: int) -> RedisNode:
            return servers.master_of(key_slot(TAGS[5 * number % len(TAGS)].encode()))

        yield Place(f"cluster of {masters}", servers.url, master, servers.mend)
    finally:
        servers.kill()


@dataclass
class Run:
    """What one run of requests came to."""

    spent: dict[str, int] = field(default_factory=dict)
    admitted: int = 0
    refused: int = 0
    away: int = 0
    longest: float = 0.0
    """Seconds that a request waited for its decision."""


async def traffic(
    gateways: list[Counters], limits: dict[str, Limits], run: Run, requests: int, pace: float
) -> None:
    """``requests`` of tenants in turn, at gateways in turn, ``pace`` a second."""
    began, names = time.perf_counter(), list(limits)

    async def one(number: int) -> None:
        tenant, gateway = names[number % len(names)], gateways[number // len(names) % len(gateways)]
        name, asked = secrets.token_hex(8), time.perf_counter()
        amounts = Amounts(1, 0, COST, 1)
        try:
            admitted = (await gateway.reserve(name, limits[tenant], amounts)).admitted
        except Overloaded:
            run.away += 1
            return
        finally:
            run.longest = max(run.longest, time.perf_counter() - asked)
        if not admitted:
            run.refused += 1
            return
        run.admitted += 1
        run.spent[tenant] = run.spent.get(tenant, 0) + COST
        await asyncio.sleep(0.05)  # the model
        gateway.settle(name, limits[tenant], amounts)

    tasks = []
    for number in range(requests):
        if (wait := began + number / pace - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        tasks.append(asyncio.create_task(one(number)))
    await asyncio.gather(*tasks)


async def fail(place: Place, how: Failure, number: int) -> None:
    node = await asyncio.to_thread(place.master, number)
    if how == "kill -9":
        node.kill()
    elif how == "FLUSHALL":
        await asyncio.to_thread(node.ask, "FLUSHALL")
    else:

        def sleep() -> None:
            with suppress(RedisError, OSError):  # the question itself takes as long
                node.ask("DEBUG", "SLEEP", 8)

        await asyncio.to_thread(sleep)


async def failovers(place: Place, requests: int, on_failure: str) -> Run:
    """Two thirds of what is asked for is within budgets; three failures come before those are spent."""
    mark = secrets.token_hex(4)
    budget = requests // TENANTS * COST * 2 // 3
    limits = {
        f"{mark}-{i}": Limits(
            (Limit("tenant", f"{mark}-{i}", "dollars", "month", budget),),
            on_failure,  # type: ignore[arg-type]
            group=f"{mark}-{i}",
        )
        for i in range(TENANTS)
    }
    gateways = [open_counters(place.url) for _ in range(GATEWAYS)]
    for gateway in gateways:
        gateway.watch()
    await asyncio.sleep(2.5)
    run, pace = Run(), 150.0
    sending = asyncio.create_task(traffic(gateways, limits, run, requests, pace))
    failures: tuple[Failure, ...] = ("FLUSHALL", "kill -9", "DEBUG SLEEP")
    for number, how in enumerate(failures):
        await asyncio.sleep(requests / pace / 8)
        await fail(place, how, number)
        if how == "kill -9":
            await asyncio.sleep(4.0)
        if how != "FLUSHALL":
            await asyncio.to_thread(place.mend)
    await sending
    async with asyncio.timeout(60):
        while any(gateway.up < 1.0 for gateway in gateways):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    beyond = {tenant: amount - budget for tenant, amount in run.spent.items() if amount > budget}
    used = sum(run.spent.values()) / (budget * TENANTS)
    losses = [gateway.losses for gateway in gateways]
    print(
        f"| {place.name} | {on_failure} | {requests:,} | {run.admitted:,} | {run.away:,} | {used:.1%} | "
        f"{len(beyond)} tenants, {sum(beyond.values()) / (budget * TENANTS):.2%} | {run.longest * 1000:,.0f} ms | "
        f"{min(losses)} to {max(losses)} |",
        flush=True,
    )
    await asyncio.gather(*(gateway.aclose() for gateway in gateways))
    return run


async def speed(place: Place, seconds: float) -> None:
    """Reservations and settlements a second by one process, and how long one alone takes."""
    counters, mark = open_counters(place.url), secrets.token_hex(4)
    limits = [
        Limits((Limit("tenant", f"{mark}-{i}", "tokens", "minute", 2**40),), group=f"{mark}-{i}")
        for i in range(TENANTS)
    ]
    amounts = Amounts(1, 10, 0, 1)

    async def one(number: int) -> None:
        name = secrets.token_hex(8)
        await counters.reserve(name, limits[number % TENANTS], amounts)
        counters.settle(name, limits[number % TENANTS], amounts)

    for number in range(TENANTS):
        await one(number)
    alone = []
    for number in range(300):
        began = time.perf_counter()
        await one(number)
        alone.append(time.perf_counter() - began)
    done, until = 0, time.perf_counter() + seconds

    async def many(first: int) -> None:
        nonlocal done
        number = first
        while time.perf_counter() < until:
            await one(number)
            number += 7
            done += 1

    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.gather(*(many(i) for i in range(64)))
    cpu, took = time.process_time() - cpu, time.perf_counter() - began
    await counters.aclose()
    print(
        f"| {place.name} | {statistics.median(alone) * 1000:.2f} ms | {done / took:,.0f} | {cpu / done * 1e6:.0f} µs |",
        flush=True,
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", choices=["failovers", "speed"])
    options = parser.parse_args()
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("redis-server is not installed (Debian: apt-get install redis-server)")
    logging.getLogger("gateway").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="redis-failover-") as name:
        folder = Path(name)
        if options.only != "speed":
            columns = (
                "store",
                "`on_store_failure`",
                "requests",
                "let in",
                "refused as away",
                "of budgets",
                "beyond",
            )
            print(f"| {' | '.join((*columns, 'slowest', 'losses noticed'))} |")
            print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
            for on_failure in ("closed", "local"):
                with sentinel(program, folder / f"sentinel-{on_failure}") as place:
                    await failovers(place, options.requests, on_failure)
                with cluster(program, folder / f"three-{on_failure}", 3) as place:
                    await failovers(place, options.requests, on_failure)
            print()
        if options.only != "failovers":
            print("| store | one alone | reservations a second, 64 at once | processor time of the gateway |")
            print("| --- | --- | --- | --- |")
            (folder / "one").mkdir()
            with single(program, folder / "one") as place:
                await speed(place, options.seconds)
            for masters in (1, 3, 6):
                with cluster(program, folder / f"speed-{masters}", masters) as place:
                    await speed(place, options.seconds)


if __name__ == "__main__":
    asyncio.run(main())
