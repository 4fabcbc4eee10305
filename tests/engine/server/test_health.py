"""What a health check says of an engine process that dies in the middle of it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from engine.errors import EngineDied, EngineStalled
from engine.server.health import Health


class Process:
    """That never does a step."""

    def __init__(self) -> None:
        self.died = asyncio.Event()
        self.asleep = False
        self.probes = 0

    def begin(self) -> Process:
        self.probes += 1
        return self

    def close(self) -> None:
        self.probes -= 1


def test_a_check_ends_when_its_process_dies_and_else_after_a_time() -> None:
    async def run() -> None:
        process = Process()
        with pytest.raises(EngineStalled):
            await Health(cast(Any, process), process.begin, timeout=0.01).check()
        check = asyncio.create_task(Health(cast(Any, process), process.begin, timeout=600).check())
        while not process.probes:  # noqa: ASYNC110 -- of a test
            await asyncio.sleep(0)
        process.died.set()
        async with asyncio.timeout(60):
            with pytest.raises(EngineDied):
                await check
        assert process.probes == 0

    asyncio.run(run())
