"""The watchdog over real processes whose loops go round, compute, wait, or are not let run."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.backoff import Backoff
from gateway.children.child import Child
from gateway.children.watchdog import PULSE_FD, Watchdog

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc here"),
]

WORKER = """
import asyncio, faulthandler, os, re, sys, time
from gateway.children import watchdog

def compute():
    re.match("(a+)+b", "a" * 200)  # in C, and with the interpreter's lock

def wait_for_nothing():
    time.sleep(3600)

async def main():
    pulse = asyncio.create_task(watchdog.heartbeat(int(os.environ[watchdog.PULSE_FD])))
    print("up", os.getpid(), flush=True)
    await asyncio.sleep(0.05)
    if sys.argv[1] != "none":
        globals()[sys.argv[1]]()
    await asyncio.sleep(3600)

faulthandler.register(watchdog.DUMP_STACK, all_threads=True)
asyncio.run(main())
"""


@asynccontextmanager
async def watched(folly: str, *, patience: float) -> AsyncIterator[tuple[Child, list[str]]]:
    said: list[str] = []
    reading, writing = os.pipe()
    child = Child(
        "w",
        (sys.executable, "-c", WORKER, folly),
        env={**os.environ, PULSE_FD: str(writing)},
        pass_fds=[writing],
        on_line=lambda name, line: said.append(line),
        backoff=Backoff(0.01, most=10.0),
    )
    child.start()
    watching = asyncio.create_task(Watchdog(child, reading, patience=patience, interval=0.05).watch())
    try:
        yield child, said
    finally:
        watching.cancel()
        child.kill()
        await child.stop(60)
        os.close(reading)
        os.close(writing)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110 - it is another process that is waited for
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("folly", ["compute", "wait_for_nothing"])
async def test_a_loop_that_stands_still_has_its_stack_told_and_is_replaced(folly: str) -> None:
    async with watched(folly, patience=0.2) as (child, said):
        await until(lambda: child.deaths)
        first, *rest = said
        assert first.startswith("up ")
        assert any(f" in {folly}" in line for line in rest)
        await until(lambda: [line for line in said[1:] if line.startswith("up ") and line != first])


async def test_a_worker_that_is_not_let_run_is_left_alone() -> None:
    """As when the machine sleeps or is busy: what it has not spent cannot have been in vain."""
    async with watched("none", patience=0.2) as (child, said):
        await until(lambda: said)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGSTOP)
        await asyncio.sleep(3)  # far more than the looks at which one that sleeps would be given up
        os.kill(child.pid, signal.SIGCONT)
        await asyncio.sleep(0.5)
        assert child.deaths == 0 and len(said) == 1


async def test_a_loop_that_goes_round_is_left_alone() -> None:
    async with watched("none", patience=0.5) as (child, said):
        await until(lambda: said)
        await asyncio.sleep(3)
        assert child.deaths == 0
