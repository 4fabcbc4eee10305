"""Bodies and results may be megabytes: no more of them is held at once than a few."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.batches import batch_table, model_run, result_writer
from gateway.batches.batch import Batch, Creator, Sums
from gateway.batches.batch_table import BATCHES, BatchTable
from gateway.batches.host import Host
from gateway.batches.line import Line, LineResult
from gateway.batches.line_queue import LineQueue
from gateway.batches.result_writer import ResultWriter
from gateway.databases import postgres
from gateway.databases.opening import open_tables
from gateway.policy.schema import LedgerSettings
from tests.gateway.batches.submitting import client, content, create, end, line
from tests.postgres_server import PostgresServer
from tests.serving import a_policy, serving

pytestmark = pytest.mark.anyio

BATCH = Batch("batch_1", Creator("key", "acme", "default", ("*",)), "/v1/chat/completions", "file-1", 1, 2)
SIZES = [40, 40, 40, 500, 10, 95, 5, 1]
TOGETHER = [[1, 2], [3], [4], [5], [6, 7], [8]]
"""Their numbers, of which none but a single one has more than a hundred characters."""


@pytest.fixture(params=["sqlite", "postgres"])
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchTable:
    monkeypatch.setattr(batch_table, "READ_SIZE", 100)
    monkeypatch.setattr(postgres, "FETCHED", 2)
    ledger = LedgerSettings()
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        ledger = LedgerSettings(store=server.url(server.new_database()))
    table = BatchTable(open_tables(BATCHES, ledger, tmp_path))
    table.create(BATCH)
    table.claim("me", 1000.0, 1, [])
    lines = [Line(number, f"{number}", "m", "", "b" * size) for number, size in enumerate(SIZES, 1)]
    table.add_lines("me", BATCH.id, lines)
    return table


def _pending(table: BatchTable) -> Iterator[list[Line]]:
    last = None
    while lines := table.pending(BATCH.id, "m", last, 100):
        last = lines[-1]
        yield lines


def test_long_bodies_are_read_a_few_at_a_time(table: BatchTable) -> None:
    found = list(_pending(table))
    assert [[one.number for one in lines] for lines in found] == TOGETHER
    assert [len(one.body) for lines in found for one in lines] == SIZES
    assert [one.number for one in table.pending(BATCH.id, "m", None, 1)] == [1]


def test_long_results_are_read_a_few_at_a_time(table: BatchTable) -> None:
    results = [LineResult(number, "r" * size, Sums(completed=1)) for number, size in enumerate(SIZES, 1)]
    table.settle("me", BATCH.id, results)
    found, last = [], 0
    while stored := table.lines(BATCH.id, ["completed"], last):
        last = stored[-1].line.number
        found.append([one.line.number for one in stored])
    assert found == TOGETHER


class _SlowTable:
    """Writes when it may, and remembers how much at once."""

    def __init__(self) -> None:
        self.may = threading.Semaphore(0)
        self.written: list[list[int]] = []

    def settle(self, owner: str, id: str, results: list[LineResult]) -> Sums:
        self.may.acquire()
        self.written.append([one.number for one in results])
        return Sums(completed=len(results))


class _Host:
    async def recorded(self) -> None:
        return

    def count(self, outcome: str, lines: int = 1) -> None:
        return


async def test_results_wait_where_those_before_are_long_and_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(result_writer, "SIZE", 100)
    monkeypatch.setattr(result_writer, "PAUSE", 0.0)
    table = _SlowTable()
    writer = ResultWriter(cast(Host, _Host()), cast(BatchTable, table), "me", BATCH, lambda: None)
    for number in (1, 2):
        await writer.add(LineResult(number, "r" * 60, Sums(completed=1)))
    third = asyncio.create_task(writer.add(LineResult(3, "r" * 60, Sums(completed=1))))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not third.done(), "there are more than a hundred characters before it"
    table.may.release(3)
    await third
    await writer.flush()
    await writer.aclose()
    assert table.written == [[1], [2], [3]]
    assert writer.sums.completed == 3


async def test_long_lines_are_read_when_their_turn_comes_and_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((batch_table, "READ_SIZE"), (model_run, "FETCHED_SIZE"), (result_writer, "SIZE")):
        monkeypatch.setattr(module, name, 1000)
    held: list[int] = []
    take = LineQueue.take

    def taken(queue: LineQueue, now: float) -> Any:
        held.append(queue.waiting_size)
        return take(queue, now)

    monkeypatch.setattr(LineQueue, "take", taken)
    async with (
        serving(tmp_path / "policies", a_policy("http://127.0.0.1:1/v1")) as gateway,
        client(gateway) as acme,
    ):
        done = await end(acme, await create(acme, *(line(f"{i}", "x" * 700) for i in range(20))))
        answers = await content(acme, done.output_file_id)
    assert [one["custom_id"] for one in answers] == [f"{i}" for i in range(20)]
    assert 0 < max(held) < 2000
