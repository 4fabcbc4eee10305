"""A real PostgreSQL: what rows cost it, alone and in batches, of one tenant and of many."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.processes import processor_seconds
from gateway.databases.database import Row
from gateway.databases.postgres import PostgresDatabase
from gateway.databases.tables import REQUESTS
from tests.postgres_server import PostgresServer, postgres_programs


def ledger(seconds: float) -> None:
    """Rows a second of writers in parallel, and the server's processor time, with and without a tenant they share."""
    programs = postgres_programs()
    if programs is None:
        print("PostgreSQL is not installed: its rows are left out")
        return
    server = PostgresServer(programs)
    try:
        server.start()
        print(
            "\n| PostgreSQL: writers | rows a batch | tenants | rows/s | ms a batch | µs of the server a row |"
        )
        print("|--:|--:|---|--:|--:|--:|")
        for writers, batch, hot in (
            (1, 20, False),
            (1, 200, False),
            (1, 1000, False),
            (8, 20, False),
            (8, 20, True),
            (8, 200, True),
        ):
            _ledger_row(server, writers, batch, hot, seconds)
    finally:
        server.remove()


def _ledger_row(server: PostgresServer, writers: int, batch: int, hot: bool, seconds: float) -> None:
    database = PostgresDatabase(server.url(server.new_database()))
    done: list[int] = []
    until = [0.0]

    def write(number: int) -> None:
        writer = database.writer()
        rows = _rows(number, batch, hot)
        writer.insert(next(rows), [])
        barrier.wait()
        while time.perf_counter() < until[0]:
            writer.insert(next(rows), [])
            done.append(batch)
        writer.close()

    barrier = threading.Barrier(writers + 1)
    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    until[0] = time.perf_counter() + 3600
    for thread in threads:
        thread.start()
    barrier.wait()
    assert server.process is not None
    before, began = _with_ended(server.process.pid), time.perf_counter()
    until[0] = began + seconds
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    time.sleep(0.5)  # until the connections have ended
    cpu = _with_ended(server.process.pid) - before
    rows = sum(done)
    print(
        f"| {writers} | {batch} | {'one of 30 %' if hot else '1,000 alike'} | {rows / took:,.0f} "
        f"| {took * writers / max(1, len(done)) * 1000:.1f} | {cpu / max(1, rows) * 1e6:.0f} |",
        flush=True,
    )


def _with_ended(pid: int) -> float:
    """Processor seconds of a server and its connections, those that have ended, too."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return processor_seconds(pid) + (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")


def _rows(writer: int, batch: int, hot: bool) -> Iterator[list[Row]]:
    number = 0
    kinds: dict[str, str | int | float] = {"text": "", "integer": 0, "real": 0.1, "boolean": False}
    while True:
        rows: list[Row] = []
        for _ in range(batch):
            number += 1
            row: dict[str, str | int | float | None] = {name: kinds[kind] for name, kind in REQUESTS.items()}
            tenant = "hot" if hot and number % 10 < 3 else f"t{secrets.randbelow(1000)}"
            row |= {
                "request_id": f"req_{secrets.token_hex(16)}",
                "created": time.time(),
                "tenant": tenant,
                "key_id": tenant,
                "tier": "pro",
                "model": "llama",
                "backend": f"up@{secrets.randbelow(100)}",
                "status": 200,
                "attempts": 1,
                "error": None,
                "prompt_tokens": 1000,
                "completion_tokens": 200,
            }
            rows.append(tuple(row.values()))
        yield rows
