"""The time limits of an answer, wait by wait."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from gateway.backends.timeouts import AFTER_THE_END, UpstreamTimeouts
from gateway.policy.schema import Timeouts
from tests.fakes import within
from tests.gateway.admission.virtual_time import in_virtual_time


def clock(*, at_once: bool = False, **limits: str) -> UpstreamTimeouts:
    return UpstreamTimeouts(
        Timeouts.model_validate({"first_token": "60ms", "idle": "60ms", "total": "5s", **limits}),
        at_once=at_once,
    )


async def wait(clock: UpstreamTimeouts, seconds: float) -> None:
    with clock:
        await asyncio.sleep(seconds)


@in_virtual_time
async def test_a_wait_within_the_limit() -> None:
    await wait(clock(), 0.01)


@pytest.mark.parametrize("begun", [False, True])
@in_virtual_time
async def test_a_wait_past_the_limit(begun: bool) -> None:
    limited = clock()
    if begun:
        limited.progress()
    async with within(0.2):
        with pytest.raises(TimeoutError):
            await wait(limited, 5)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


@in_virtual_time
async def test_waits_without_progress_add_up() -> None:
    limited = clock()
    await wait(limited, 0.04)
    async with within(0.1):
        with pytest.raises(TimeoutError):
            await wait(limited, 0.04)


@pytest.mark.parametrize("begun", [False, True])
@in_virtual_time
async def test_a_sign_of_life_starts_anew(begun: bool) -> None:
    limited = clock(first_token="500ms", idle="500ms", total="60s")
    if begun:
        limited.progress()
    for _ in range(12):
        await wait(limited, 0.05)
        limited.alive()
    limited = clock(total="100ms")
    with pytest.raises(TimeoutError):
        for _ in range(100):
            await wait(limited, 0.01)
            limited.alive()
    assert "did not finish" in limited.reason()


@in_virtual_time
async def test_what_goes_on_its_way_starts_a_wait_anew() -> None:
    limited = clock(first_token="60s", idle="500ms", total="60s")
    await wait(limited, 0.01)
    limited.progress()
    began = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError), limited:
        for _ in range(12):
            await asyncio.sleep(0.3)
            limited.went_on()
        await asyncio.sleep(60)
    assert asyncio.get_running_loop().time() - began == pytest.approx(12 * 0.3 + 0.5, abs=0.1)
    assert "stalled" in limited.reason()


@in_virtual_time
async def test_progress_starts_anew_and_one_timer_serves_many_waits() -> None:
    limited = clock()
    for _ in range(8):
        await wait(limited, 0.02)
        limited.progress()
    async with within(0.2):
        with pytest.raises(TimeoutError):
            await wait(limited, 5)
    assert "stalled" in limited.reason()


@in_virtual_time
async def test_time_between_waits_is_the_readers() -> None:
    limited = clock()
    limited.progress()
    await wait(limited, 0.01)
    await asyncio.sleep(0.1)
    await wait(limited, 0.02)


@in_virtual_time
async def test_the_whole_has_a_limit_too() -> None:
    limited = clock(total="80ms")
    with pytest.raises(TimeoutError):
        for _ in range(20):
            await wait(limited, 0.02)
            limited.progress()
    assert "did not finish" in limited.reason()
    with pytest.raises(TimeoutError):
        await wait(limited, 0.02)


@in_virtual_time
async def test_at_once_there_is_no_first_token() -> None:
    await wait(clock(at_once=True), 0.1)


@in_virtual_time
async def test_after_the_end_patience_is_short() -> None:
    limited = clock(idle="5s")
    limited.progress()
    await wait(limited, 0)
    limited.ended()
    async with within(AFTER_THE_END + 0.2):
        with pytest.raises(TimeoutError):
            await wait(limited, 5)


@in_virtual_time
async def test_a_cancellation_from_outside_is_one() -> None:
    for begun in (False, True):
        limited = clock()
        if begun:
            limited.progress()
        task = asyncio.create_task(wait(limited, 5))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@in_virtual_time
async def test_both_at_the_same_time_is_a_cancellation() -> None:
    limited = clock()
    task = asyncio.create_task(wait(limited, 5))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_at(limited._rings, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


@in_virtual_time
async def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), clock():
        raise KeyError


@pytest.mark.parametrize("begun", [False, True])
@in_virtual_time
async def test_nothing_is_left_behind(begun: bool) -> None:
    limited = clock(first_token="60s", idle="60s")
    if begun:
        limited.progress()
    await wait(limited, 0)
    if begun:  # before that every wait cleans up after itself
        limited.close()
    gone = weakref.ref(limited)
    del limited
    gc.collect()
    assert gone() is None
