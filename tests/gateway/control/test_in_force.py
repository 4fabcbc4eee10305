"""When a generation is said to be in force: the real watcher, and workers that are files alone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.control import in_force
from gateway.control.in_force import InForce, publish
from gateway.policy.loader import Loaded
from gateway.policy.reload import PolicyWatcher

pytestmark = pytest.mark.anyio

POLICY = """\
version: 1
backends: {b: {kind: openai, base_url: http://b}}
models: {%s: {targets: [{backend: b, model: m}]}}
"""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Followed:
    """A watcher that announces what it applies, numbered from 1."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "policies" / "gateway.yaml"
        self.published = folder / "in_force"
        self.published.mkdir()
        self.file.parent.mkdir()
        self.write("one")
        self.watcher = PolicyWatcher(self.file.parent, self._apply, interval=0.02)
        self.in_force = InForce(self.published, 2, self.watcher)

    def write(self, model: str) -> None:
        self.file.write_text(POLICY % model)

    async def obeys(self, worker: int) -> None:
        """The worker has applied what is there now."""
        await asyncio.to_thread(publish, self.published, worker, self.watcher.in_force)

    async def _apply(self, loaded: Loaded) -> None:
        self.in_force.announce(self.watcher.generation + 1, loaded)


@pytest.fixture
async def followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Followed]:
    caplog.set_level(logging.INFO)
    one = Followed(tmp_path)
    async with one.in_force, one.watcher:
        yield one


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == in_force.__name__]


async def test_it_is_logged_once_all_workers_obey_it(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    for number, model in enumerate(("one", "two", "three"), 1):
        followed.write(model)
        await until(lambda number=number: followed.watcher.generation == number)
        await followed.obeys(1)
        await asyncio.sleep(0.2)
        assert len(said(caplog)) == number - 1
        await followed.obeys(2)
        await until(lambda number=number: len(said(caplog)) == number)
        assert said(caplog)[-1] == f"policy generation {number} is in force"


async def test_whoever_waits_for_it_finds_it_in_the_log(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    for worker in (1, 2):
        await followed.obeys(worker)
    assert await followed.in_force.until(lambda: True)
    assert said(caplog) == ["policy generation 1 is in force"]


async def test_one_that_was_overtaken_is_not_logged(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    followed.write("two")
    await until(lambda: followed.watcher.generation == 2)
    for worker in (1, 2):
        await followed.obeys(worker)
    await until(lambda: said(caplog) == ["policy generation 2 is in force"])


async def test_a_worker_that_does_not_take_it_up_is_named_once(
    followed: Followed, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await followed.obeys(1)
    monkeypatch.setattr(in_force, "TIMEOUT", 0.1)
    monkeypatch.setattr(in_force, "_LOOK_SELDOM", 0.02)
    await until(lambda: said(caplog)[-1:] == ["policy generation 1 is not in force everywhere yet: worker 2"])
    assert not await followed.in_force.until(lambda: True)
    await followed.obeys(2)
    await until(lambda: said(caplog)[-1] == "policy generation 1 is in force")
    assert len(said(caplog)) == 2
