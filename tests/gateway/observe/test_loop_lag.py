"""The loop's lag is what a computation without a pause makes it."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.observe import loop_lag

pytestmark = pytest.mark.anyio


async def test_a_computation_that_does_not_pause_is_seen() -> None:
    seen: list[float] = []
    watching = asyncio.create_task(loop_lag.watch(seen.append))
    await asyncio.sleep(0.05)
    before = len(seen)
    time.sleep(0.15)  # noqa: ASYNC251
    await asyncio.sleep(0.05)
    watching.cancel()
    assert before >= 1
    assert max(seen[before:]) >= 0.1
