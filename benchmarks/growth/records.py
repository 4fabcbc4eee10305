"""Log, ledger and receipts: processor time of the event loop's thread for one request, and of all threads

A request's end is recorded as the stage ``record`` does it, but for its times, with the defaults of ``tollgate serve``:
the log at info to a pipe that is read, an SQLite ledger, receipts in memory, metrics.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.growth.timing import REPEATS
from gateway.databases.sqlite import SqliteDatabase
from gateway.observe import logs
from gateway.observe.accounting import Accounting
from gateway.observe.ledger.ledger import Ledger
from gateway.observe.metrics import Metrics
from gateway.observe.receipts import Receipts
from gateway.policy.schema import Policy, Target, Timeouts
from gateway.quota.quotas import Quotas
from gateway.stages.record import Observers, Recorder
from gateway.stores.memory import MemoryStore
from gateway.types import Call, Candidate, ChatRequest, Principal, Receipt, UpstreamUsage, Usage

COLUMNS = ("what", "requests together", "loop, µs a request", "all threads, µs a request")

POLICY = Policy.model_validate(
    {
        "version": 1,
        "backends": {"up": {"kind": "openai", "base_url": "http://127.0.0.1:1/v1"}},
        "models": {"m": {"targets": [{"backend": "up", "model": "u"}]}},
        "prices": {"up/u": {"input": 1.0, "output": 2.0}},
    }
)
TARGET = Target(backend="up", model="u")
CANDIDATE = Candidate("m", TARGET, Timeouts())
PRINCIPAL = Principal("key", "tenant")
REQUEST = ChatRequest(model="m", messages=({"role": "user", "content": "Hello"},), stream=False)


def a_call(number: int) -> Call:
    call = Call(
        request_id=f"req_{number:032x}",
        principal=PRINCIPAL,
        request=REQUEST,
        policy=POLICY,
        receipt=Receipt(f"req_{number:032x}", time.time()),
        started=time.perf_counter(),
        candidate=CANDIDATE,
    )
    call.upstream_usage.append(UpstreamUsage(TARGET, Usage(10, 20), False, "answer", "m"))
    note = call.receipt.note
    note("route", backend="up", model="u", why="primary")
    note("queue", wait=0.0, backend="up")
    note("fallback", attempts=[{"backend": "up", "model": "u", "seconds": 0.01, "outcome": "ok"}])
    note(
        "meter", first_token=0.01, prompt_tokens=10, completion_tokens=20, cached_tokens=0, reasoning_tokens=0
    )
    return call


def rows() -> Iterator[Sequence[object]]:
    with tempfile.TemporaryDirectory() as folder:
        for parts in ("nothing", "log", "ledger", "receipts", "log, ledger, receipts"):
            for together in (100, 1_000):
                loop, process = asyncio.run(measured(Path(folder), parts, together))
                yield parts, together, loop, process


async def measured(folder: Path, parts: str, together: int) -> tuple[float, float]:
    """Microseconds of this thread and of the process."""
    reading, writing = os.pipe()
    reader = threading.Thread(target=_drain, args=(reading,), daemon=True)
    reader.start()
    stream = os.fdopen(writing, "w")
    logs.set_up("info" if "log" in parts else "warning", "text", stream, batches=True)
    ledger = Ledger(SqliteDatabase(folder / f"{len(parts)}-{together}.sqlite")) if "ledger" in parts else None
    receipts = Receipts(MemoryStore())
    accounting, quotas = Accounting(Metrics(), ledger), Quotas("memory")
    record = _recorder(receipts, accounting, quotas, kept="receipts" in parts)
    numbers = iter(range(10**9))
    loops, processes = [], []
    for repeat in range(REPEATS + 1):
        calls = [a_call(next(numbers)) for _ in range(together)]
        began, began_process = time.thread_time_ns(), time.process_time_ns()
        for call in calls:
            record(call)
        loop = time.thread_time_ns() - began
        await asyncio.sleep(0.2)  # the threads write
        if repeat:
            loops.append(loop / 1000 / together)
            processes.append((time.process_time_ns() - began_process) / 1000 / together)
    await receipts.aclose()
    await quotas.aclose()
    if ledger is not None:
        await ledger.aclose()
    logging.getLogger().handlers[0].flush()
    stream.close()
    return sorted(loops)[len(loops) // 2], sorted(processes)[len(processes) // 2]


def _recorder(
    receipts: Receipts, accounting: Accounting, quotas: Quotas, *, kept: bool
) -> Callable[[Call], None]:
    if not kept:
        receipts.keep = lambda tenant, receipt: None  # type: ignore[method-assign]

    observers = Observers(quotas, accounting, receipts=receipts)

    def record(call: Call) -> None:
        recorder = Recorder(observers, call)
        recorder.admitted(None)
        recorder.end(None)

    return record


def _drain(descriptor: int) -> None:
    while os.read(descriptor, 65536):
        pass
