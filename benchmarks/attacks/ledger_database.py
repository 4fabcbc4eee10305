"""PostgreSQL hangs, is locked, refuses connections, crashes: do callers notice, is a request lost or written twice?"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from benchmarks.attacks.frame import ALICE, MALLORY, Gateway, Rig, must, skip
from gateway.databases.database import DatabaseError
from gateway.databases.postgres import PostgresDatabase
from tests.fakes import completion, reply
from tests.postgres_server import PostgresServer, postgres_programs

POINT = "30.14"
TRIED = (
    "requests under a budget while PostgreSQL ends sessions ten times, has the ledger locked, stands still, has no "
    "connection left, is killed, each for some seconds"
)
HOLDS = "every request is answered within 2 s, and is in the ledger once"
SECONDS = 6.0
SLOW = 2.0


async def attack(rig: Rig) -> str:
    programs = postgres_programs()
    if programs is None:
        skip("needs PostgreSQL (Debian: postgresql)")
    server = await asyncio.to_thread(PostgresServer, programs)
    try:
        await asyncio.to_thread(server.start)
        return await _attack(rig, server)
    finally:
        await asyncio.to_thread(server.remove)


async def _attack(rig: Rig, server: PostgresServer) -> str:
    name = await asyncio.to_thread(server.new_database)
    upstream = await rig.upstream(reply(completion()))
    policy = rig.policy(
        upstream,
        ledger={"store": server.url(name)},
        prices={"upstream-model": {"input": 1.0, "output": 1.0}},
        tenants={one: {"budget": {"usd_per_day": 100.0}} for one in ("alice", "mallory")},
    )
    gateway = await rig.gateway(policy)
    must((await gateway.chat(ALICE)).status_code == 200, "a first request was refused")
    faults = {
        "ended sessions": _ended(server, name),
        "a locked ledger": _locked(server, name),
        "a server that stands still": _stopped(server),
        "no connection left": _crowded(server, name),
        "a crash": _crashed(server),
    }
    answered, worst = 1, 0.0
    for fault, under_way in faults.items():
        async with under_way:
            statuses, longest = await _ask(gateway)
        must(set(statuses) == {200}, f"with {fault} callers got {sorted(set(statuses))}")
        must(longest < SLOW, f"with {fault} a request took {longest:.1f} s")
        answered, worst = answered + len(statuses), max(worst, longest)
    written = await _written(server, name, answered)
    must(written == answered, f"{answered} were answered, {written} are in the ledger")
    return f"{answered} answered, the slowest after {worst:.2f} s, {written} in the ledger"


async def _ask(gateway: Gateway) -> tuple[list[int], float]:
    """Statuses, and the longest took so many seconds."""
    statuses, longest = [], 0.0
    end = time.monotonic() + SECONDS
    while (began := time.monotonic()) < end:
        answers = await asyncio.gather(gateway.chat(ALICE), gateway.chat(MALLORY))
        statuses += [one.status_code for one in answers]
        longest = max(longest, time.monotonic() - began)
        await asyncio.sleep(0.05)
    return statuses, longest


async def _written(server: PostgresServer, name: str, wanted: int) -> int:
    """Rows of the ledger, once there are as many as wanted, or do not become more for long."""
    count = 0
    for _ in range(60):
        (row,) = await asyncio.to_thread(server.execute, name, "SELECT count(*) AS n FROM tollgate.requests")
        count = int(str(row["n"]))
        if count >= wanted:
            break
        await asyncio.sleep(0.5)
    return count


@asynccontextmanager
async def _ended(server: PostgresServer, name: str) -> AsyncIterator[None]:
    sql = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' AND pid <> pg_backend_pid()"

    async def end() -> None:
        for _ in range(10):
            await asyncio.to_thread(server.execute, name, sql)
            await asyncio.sleep(SECONDS / 12)

    ending = asyncio.create_task(end())
    yield
    await ending


@asynccontextmanager
async def _locked(server: PostgresServer, name: str) -> AsyncIterator[None]:
    connection = await asyncio.to_thread(PostgresDatabase(server.url(name)).connect)
    try:
        connection.execute("BEGIN")
        connection.execute("LOCK TABLE tollgate.requests, tollgate.spendings IN ACCESS EXCLUSIVE MODE")
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


@asynccontextmanager
async def _stopped(server: PostgresServer) -> AsyncIterator[None]:
    postmaster = server.process.pid if server.process else 0
    group = [postmaster, *map(int, _children(postmaster))]
    _signal(group, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(group, signal.SIGCONT)


def _signal(group: Iterable[int], number: int) -> None:
    """Servers for one connection come and go."""
    for pid in group:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@asynccontextmanager
async def _crowded(server: PostgresServer, name: str) -> AsyncIterator[None]:
    """All connections that the server allows are taken, also those that the gateway had."""
    held: list[Any] = []

    def crowd() -> None:
        with suppress(DatabaseError):
            while True:
                held.append(PostgresDatabase(server.url(name)).connect())

    def drive_out() -> None:
        own = [one.info.backend_pid for one in held]
        others = "SELECT pid FROM pg_stat_activity WHERE datname = %s AND pid <> ALL(%s)"
        for row in held[0].execute(others, [name, own]).fetchall():
            held[0].execute("SELECT pg_terminate_backend(%s)", [row["pid"]])

    try:
        await asyncio.to_thread(crowd)
        await asyncio.to_thread(drive_out)
        await asyncio.to_thread(crowd)
        yield
    finally:
        for one in held:
            one.close()


@asynccontextmanager
async def _crashed(server: PostgresServer) -> AsyncIterator[None]:
    await asyncio.to_thread(server.stop, signal.SIGQUIT)
    yield
    await asyncio.to_thread(server.start)


def _children(pid: int) -> list[str]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()
