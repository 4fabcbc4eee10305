"""Queries of the admin API over 2 million requests of 30 days, half of them of the last: milliseconds, worst of 3"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gateway.databases.database import Database, Row
from gateway.databases.postgres import PostgresDatabase
from gateway.databases.sqlite import SqliteDatabase
from gateway.observe.ledger.request_search import RequestFilter, find_requests
from gateway.observe.ledger.usage_detail import read_any_usage
from gateway.observe.ledger.usage_query import GROUPS, Interval, UsageFilter, read_window_usage
from tests.postgres_server import PostgresServer, postgres_programs

COLUMNS = ("query", "rows found", "SQLite", "PostgreSQL")
SIZE = int(os.environ.get("LEDGER_ROWS", "2000000"))
DAY = 86_400
BATCH = 1_000
TENANTS, MODELS = (
    200,
    ("gpt-4o-mini", "gpt-4o", "claude-sonnet-4-5", "tollgate-demo", "llama-70b", "rare-model"),
)
AGENTS = [f"agent-{number}/1.0" for number in range(12)]

Query = Callable[[Database], Sequence[object]]


def rows() -> Iterator[Sequence[object]]:
    programs = postgres_programs()
    with tempfile.TemporaryDirectory() as folder:
        now = time.time()
        server = PostgresServer(programs) if programs is not None else None
        databases: list[Database] = [SqliteDatabase(Path(folder, "ledger.sqlite"))]
        try:
            if server is not None:
                server.start()
                databases.append(PostgresDatabase(server.url(server.new_database())))
            yield "writing a row, in µs", SIZE, *(_fill(database, now) for database in databases)
            if server is not None:
                server.execute("test_1", "VACUUM ANALYZE")
                size = server.execute("test_1", "SELECT pg_database_size('test_1') AS size")[0]["size"]
                yield (
                    "bytes a row",
                    SIZE,
                    Path(folder, "ledger.sqlite").stat().st_size / SIZE,
                    int(str(size)) / SIZE,
                )
            for name, query in _queries(now):
                found = [_timed(query, database) for database in databases]
                yield name, found[0][0], *(milliseconds for _, milliseconds in found)
        finally:
            if server is not None:
                server.remove()


def _timed(query: Query, database: Database) -> tuple[int, float]:
    count, worst = 0, 0.0
    for _ in range(3):
        begun = time.perf_counter()
        count = len(query(database))
        worst = max(worst, time.perf_counter() - begun)
    return count, round(worst * 1000, 1)


def _queries(now: float) -> Iterator[tuple[str, Query]]:
    def usage(days: int, by: tuple[str, ...], interval: Interval | None = None, **equal: str) -> Query:
        where = UsageFilter(now - days * DAY, now, tuple(equal.items()))  # type: ignore[arg-type]
        return lambda database: read_any_usage(database, where, by, interval)  # type: ignore[arg-type]

    def search(**where: object) -> Query:
        return lambda database: find_requests(database, RequestFilter(**where), limit=50).rows  # type: ignore[arg-type]

    for days in (1, 30):
        for group in GROUPS:
            yield f"usage by {group}, {days} d", usage(days, (group,))
    yield "usage by tenant and hour, 1 d", usage(1, ("tenant",), "hour")
    yield "usage by hour, 30 d", usage(30, (), "hour")
    yield "usage by tenant and day, 30 d", usage(30, ("tenant",), "day")
    yield "usage by key and model, 30 d", usage(30, ("key", "model"))
    yield "usage of a tenant by day, 30 d", usage(30, (), "day", tenant="tenant-7")
    yield "budgets after a restart", lambda database: read_window_usage(database, now)
    yield "requests, the newest", search()
    yield (
        "requests, a page in the middle",
        lambda database: (
            find_requests(database, RequestFilter(), limit=50, after=(now - 15 * DAY, "req")).rows
        ),
    )
    for name, where in (
        ("a tenant", {"tenant": "tenant-7"}),
        ("no tenant", {"tenant": "nobody"}),
        ("a key", {"key": "tenant-7-k1"}),
        ("no key", {"key": "nobody"}),
        ("a model", {"model": "gpt-4o"}),
        ("a rare model", {"model": "rare-model"}),
        ("no model", {"model": "nothing"}),
        ("a backend", {"backend": "openai"}),
        ("a rare backend", {"backend": "rare"}),
        ("no backend", {"backend": "nothing"}),
        ("a status", {"status": 429}),
        ("a rare status", {"status": 418}),
        ("an error", {"error": "rate_limit_exceeded"}),
        ("a rare error", {"error": "teapot"}),
        ("no error so named", {"error": "nothing"}),
        ("failed", {"failed": True}),
        ("failed of a tenant", {"failed": True, "tenant": "tenant-7"}),
        ("not failed", {"failed": False}),
        ("slow", {"min_seconds": 5.0}),
        ("none so slow", {"min_seconds": 1e6}),
        ("of an id", {"request_id": "req_" + f"{SIZE // 2:032x}"}),
    ):
        yield f"requests, {name}", search(**where)


def _fill(database: Database, now: float) -> float:
    """Microseconds of a row, the server's included."""
    writer, begun = database.writer(), time.perf_counter()
    chance = random.Random(1)
    for start in range(0, SIZE, BATCH):
        writer.insert([_row(number, chance, now) for number in range(start, min(SIZE, start + BATCH))], [])
    writer.close()
    return (time.perf_counter() - begun) / SIZE * 1e6


def _row(number: int, chance: random.Random, now: float) -> Row:
    share = number / SIZE
    days = 30 - 58 * share if share < 0.5 else 2 * (1 - share)
    tenant = int(TENANTS * chance.random() ** 2)
    model, backend = MODELS[int(5 * chance.random() ** 2)], ("openai", "anthropic", "bundled")[number % 3]
    status, error = 200, None
    if number % 40 == 0:
        status, error = 429, "rate_limit_exceeded"
    if number % (SIZE // 20) == 7:
        model, backend, status, error = "rare-model", "rare", 418, "teapot"
    return (
        f"req_{number:032x}",
        now - days * DAY,
        f"tenant-{tenant}",
        f"tenant-{tenant}-k{chance.randrange(3)}",
        "pro",
        model,
        *((model, backend, model) if error != "rate_limit_exceeded" else (None, None, None)),
        status,
        True,
        *(900, 0, 200, 0, 255_000, False, 12.0 if number % (SIZE // 30) == 3 else 1.5, 1, error, 0, 0),
        AGENTS[tenant % 12],
    )
