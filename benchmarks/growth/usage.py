"""``tollgate usage --since 1d`` by tenant: seconds of processor time, of a ledger of 100 days"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from benchmarks.growth.timing import process_seconds
from gateway.cli import usage
from gateway.databases.sqlite import SqliteDatabase
from gateway.observe.ledger.ledger import Ledger
from gateway.types import Principal

COLUMNS = ("rows", "--since 1d", "--since 100d")
SIZES = (20_000, 200_000, 2_000_000)
DAY = 86_400


def rows() -> Iterator[Sequence[object]]:
    with tempfile.TemporaryDirectory() as folder:
        policies = Path(folder, "policies")
        policies.mkdir()
        (policies / "gateway.yaml").write_text("version: 1\n")
        for size in SIZES:
            state = Path(folder, str(size))
            _fill(state / "ledger.sqlite", size)
            os.environ["TOLLGATE_STATE_DIR"] = str(state)
            yield size, _seconds(policies, "1d"), _seconds(policies, "100d")


def _seconds(policies: Path, since: str) -> float:
    arguments = argparse.Namespace(policies=str(policies), since=since, by="tenant", json=True)
    with contextlib.redirect_stdout(io.StringIO()):
        return process_seconds(lambda: usage.run(arguments))


def _fill(path: Path, size: int) -> None:
    ledger = Ledger(SqliteDatabase(path))
    ledger.record_refusal("first", Principal("k", "t"), 400, "no")
    ledger.wait_drained(60)
    chance, now = random.Random(1), time.time()
    with closing(sqlite3.connect(path)) as database, database:
        database.executemany(
            "INSERT INTO requests (request_id, created, tenant, key_id, tier, model, status, stream, prompt_tokens,"
            " cached_tokens, completion_tokens, reasoning_tokens, cost_nanodollars, estimated, seconds, attempts)"
            " VALUES (?, ?, ?, 'k', 'free', 'm', 200, 0, 10, 0, 20, 0, 50000, 0, 0.1, 1)",
            (
                (f"req_{i:032x}", now - 100 * DAY * (size - i) / size, f"tenant-{chance.randrange(1000)}")
                for i in range(size)
            ),
        )
