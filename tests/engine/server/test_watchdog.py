"""A step that hangs is told from an engine process that gets no processor."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from engine import processes
from engine.server.watchdog import StuckClock, end_when_stuck

linux = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody tells how long threads waited")


def seconds(looks: list[tuple[float, dict[int, float]]]) -> float:
    clock = StuckClock(pause=1.0)
    clock.add(0.0, {1: 100.0, 2: 50.0})
    for passed, waited in looks:
        clock.add(passed, waited)
    return round(clock.seconds, 9)


@pytest.mark.parametrize(
    ("looks", "counted"),
    [
        ([(1.0, {1: 100.0, 2: 50.0})] * 5, 5.0),
        ([(1.0, {})] * 5, 5.0),
        ([(1.0, {1: 100.0 + 0.9 * look, 2: 50.0}) for look in range(1, 11)], 1.0),
        ([(1.0, {1: 100.0, 2: 50.0, 3: 0.9})], 0.1),
        ([(1.0, {1: 100.0, 2: 50.0}), (1.0, {1: 100.0, 2: 52.0})], 0.0),
        ([(60.0, {1: 100.0, 2: 50.0})], 1.0),
    ],
    ids=["sleeps", "untold", "starved", "new-thread", "told-late", "this-one-starved"],
)
def test_only_seconds_in_which_it_could_run_count(
    looks: list[tuple[float, dict[int, float]]], counted: float
) -> None:
    assert seconds(looks) == counted


class Client:
    """Of an engine process that does no step."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.last = None
        self.computing = True
        self.killed = False

    def kill(self) -> None:
        self.killed = True


@contextmanager
def child(code: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield process.pid
    finally:
        for pid in processes.tree(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("how", ["sleeping", "stopped"])
def test_what_sleeps_and_what_is_stopped_is_killed(how: str) -> None:
    async def run() -> None:
        with child("import time; time.sleep(3600)") as pid:
            if how == "stopped":
                os.kill(pid, signal.SIGSTOP)
            client = Client(pid)
            async with asyncio.timeout(300):
                await end_when_stuck(cast(Any, client), 0.05)
            assert client.killed

    asyncio.run(run())


@linux
def test_who_waits_for_a_processor_is_told() -> None:
    """Two on one processor, where one has next to nothing of it; the other's child is the one that is asked for."""
    one = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, {{{one}}})\nwhile True: pass"
    starved = (
        f"import os; os.sched_setaffinity(0, {{{one}}})\nos.fork()\n"
        "os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    )
    with child(spin), child(starved) as pid:
        deadline = time.monotonic() + 300
        while sum(wait > 0.2 for wait in processes.waited(pid).values()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert processes.waited(pid) == {}
