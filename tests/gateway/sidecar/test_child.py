"""The sidecar as the supervisor's child."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.process.supervisor import Supervisor
from gateway.sidecar.api import SidecarDown
from gateway.sidecar.client import SidecarClient
from gateway.sidecar.config import SidecarConfig

pytestmark = pytest.mark.anyio


@pytest.fixture
def config() -> Iterator[SidecarConfig]:
    with tempfile.TemporaryDirectory(prefix="tg-") as folder:
        yield SidecarConfig(socket=str(Path(folder) / "s"), embedder=None)


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(env=os.environ, on_line=lambda name, line: None, drain_timeout=5)
    yield supervisor
    await supervisor.shut_down()


async def pid(supervisor: Supervisor, config: SidecarConfig, *, other_than: int | None = None) -> int:
    """Of a sidecar that answers."""
    async with asyncio.timeout(300), aclosing(SidecarClient(Path(config.socket))) as client:
        while True:
            try:
                await client.status()
            except SidecarDown:
                await asyncio.sleep(0.02)
                continue
            child = supervisor.sidecar
            if child is not None and child.pid is not None and child.pid != other_than:
                return child.pid
            await asyncio.sleep(0.02)


async def test_it_is_started_anew_when_it_dies_or_is_to_do_something_else(
    supervisor: Supervisor, config: SidecarConfig
) -> None:
    await supervisor.run_sidecar(config, {})
    first = await pid(supervisor, config)
    await supervisor.run_sidecar(replace(config), {})
    assert await pid(supervisor, config) == first
    os.kill(first, signal.SIGKILL)
    second = await pid(supervisor, config, other_than=first)
    assert second != first
    await supervisor.run_sidecar(replace(config, threads=2), {})
    assert await pid(supervisor, config) != second
    await supervisor.run_sidecar(None, {})
    assert supervisor.sidecar is None
    assert not Path(config.socket).exists()  # noqa: ASYNC240


async def test_who_is_to_do_something_else_is_not_missed_meanwhile(
    supervisor: Supervisor, config: SidecarConfig
) -> None:
    config = replace(config, embedder="builtin")
    await supervisor.run_sidecar(config, {})
    first = await pid(supervisor, config)
    async with asyncio.timeout(300), aclosing(SidecarClient(Path(config.socket))) as client:
        while "loading" in (await client.status())["models"].values():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        changing = asyncio.create_task(supervisor.run_sidecar(replace(config, max_queue=99), {}))
        answers = missed = 0
        while not changing.done():
            try:
                await client.embed([f"word {answers}"])
                answers += 1
            except SidecarDown:  # what is under way at the very change
                missed += 1
            await asyncio.sleep(0.02)
        assert len(await client.embed(["again"])) == 1
    assert answers > 5
    assert missed <= 1
    assert supervisor.sidecar is not None
    assert supervisor.sidecar.pid != first


async def test_none_is_started_during_the_shutdown(supervisor: Supervisor, config: SidecarConfig) -> None:
    await supervisor.run_sidecar(config, {})
    await pid(supervisor, config)
    await supervisor.shut_down()
    assert supervisor.sidecar is None
    await supervisor.run_sidecar(config, {})
    assert supervisor.sidecar is None
