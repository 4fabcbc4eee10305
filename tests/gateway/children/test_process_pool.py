"""Computations in real processes: what they return and raise, and what becomes of those that take too long."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.children.process_pool import PoolBusy, ProcessDied, ProcessPool
from gateway.errors import BadRequest

pytestmark = pytest.mark.anyio

LONG = 300.0
"""Seconds that nothing here takes."""


@pytest.fixture
async def pool() -> AsyncIterator[ProcessPool]:
    pool = ProcessPool(2)
    yield pool
    await pool.aclose()


async def test_it_is_another_process_which_is_kept(pool: ProcessPool) -> None:
    first = await pool.run("a", LONG, os.getpid)
    assert first != os.getpid()
    assert await pool.run("b", LONG, os.getpid) == first


async def test_what_is_raised_is_the_same_here(pool: ProcessPool) -> None:
    with pytest.raises(BadRequest, match="The request body is an array") as refusal:
        await pool.run("a", LONG, _read_an_array)
    assert (refusal.value.status, refusal.value.code) == (400, "invalid_json")


def _read_an_array() -> object:
    from gateway.wire.json_body import read_json

    return read_json(b"[]")


async def test_what_is_long_goes_there_and_comes_back(pool: ProcessPool) -> None:
    data = b"x" * 10_000_000
    assert await pool.run("a", LONG, bytes.upper, data) == data.upper()


async def test_what_holds_the_interpreter_ends_with_its_time_and_the_loop_goes_on(pool: ProcessPool) -> None:
    """Only a process can be ended in the middle of a regular expression."""
    await pool.run("a", LONG, os.getpid)
    with pytest.raises(TimeoutError):
        await pool.run("a", 0.1, re.match, "(a+)+b", "a" * 200)
    assert await pool.run("a", LONG, os.getpid) > 0


async def test_time_in_which_it_cannot_compute_does_not_count(pool: ProcessPool) -> None:
    """A machine may be busy with something else, and a process that has just begun has its modules to load."""
    await pool.run("a", 0.2, time.sleep, 0.5)


async def test_one_that_gets_nothing_done_is_ended_all_the_same(
    pool: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.children.process_pool._STUCK", 1)
    monkeypatch.setattr("gateway.children.process_pool._START", 0)
    with pytest.raises(TimeoutError):
        await pool.run("a", 0.1, time.sleep, LONG)


async def test_one_that_dies_is_told_and_replaced(pool: ProcessPool) -> None:
    with pytest.raises(ProcessDied):
        await pool.run("a", LONG, _die)
    assert await pool.run("a", LONG, os.getpid) > 0


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def test_one_that_was_killed_while_idle_is_replaced_unseen(pool: ProcessPool) -> None:
    first = await pool.run("a", LONG, os.getpid)
    os.kill(first, signal.SIGKILL)
    while _exists(first):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert await pool.run("a", LONG, os.getpid) != first


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_who_leaves_costs_nobody_a_process(pool: ProcessPool) -> None:
    first = await pool.run("a", LONG, os.getpid)
    leaving = asyncio.create_task(pool.run("a", LONG, time.sleep, 0.2))
    await asyncio.sleep(0.1)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert await pool.run("a", LONG, os.getpid) == first  # after what was left: it is the same owner's turn


async def test_closed_it_ends_what_is_left_of_those_who_went(pool: ProcessPool) -> None:
    working = asyncio.create_task(pool.run("a", LONG, time.sleep, LONG))
    await asyncio.sleep(0.1)
    working.cancel()
    async with asyncio.timeout(60):
        await pool.aclose()


async def test_nobody_stands_in_line_for_ever() -> None:
    pool = ProcessPool(1, queue_timeout=0.2)
    working = asyncio.create_task(pool.run("a", LONG, time.sleep, LONG))
    await asyncio.sleep(0.1)
    for owner in "ab":
        with pytest.raises(PoolBusy):
            await pool.run(owner, LONG, os.getpid)
    assert not working.done()
    working.cancel()
    await pool.aclose()


class _Heavy:
    def __reduce__(self) -> tuple[object, tuple[int]]:
        return _compute, (10_000_000,)


def _compute(steps: int) -> int:
    return sum(range(steps))


async def test_what_a_call_brings_along_is_got_ready_in_no_time_of_its_own(pool: ProcessPool) -> None:
    assert await pool.run("a", 0.05, str, _Heavy()) == str(_compute(10_000_000))


async def test_who_asks_for_much_leaves_a_process_to_the_others(pool: ProcessPool) -> None:
    many = [asyncio.create_task(pool.run("greedy", LONG, time.sleep, 0.2)) for _ in range(20)]
    await asyncio.sleep(0)
    await pool.run("modest", LONG, os.getpid)
    assert sum(task.done() for task in many) < 20
    for task in many:
        task.cancel()
    await asyncio.gather(*many, return_exceptions=True)
    assert await pool.run("greedy", LONG, os.getpid) > 0


async def test_no_key_is_told_to_it(pool: ProcessPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    assert await pool.run("a", LONG, os.getenv, "OPENAI_API_KEY") is None
