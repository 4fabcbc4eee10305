"""What is said of a Redis that is away, and how often."""

from __future__ import annotations

import asyncio

import pytest

from gateway.stores import outage_log
from gateway.stores.outage_log import OutageLog

pytestmark = pytest.mark.anyio


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.set_level("INFO", logger="gateway.stores")
    return caplog.messages


async def until(count: int, caplog: pytest.LogCaptureFixture) -> list[str]:
    async with asyncio.timeout(60):
        while len(caplog.messages) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return caplog.messages


async def test_parts_that_go_with_one_server_are_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage_log, "TOGETHER", 0.01)
    told = OutageLog("quotas", "nothing is counted", parts=12)
    for _ in range(4):
        told.went("gone")
    assert await until(1, caplog) == [
        "quotas: gone (4 of 12 parts); until it answers, nothing is counted",
    ]
    for _ in range(4):
        assert len(caplog.messages) == 1
        told.came_back()
    assert caplog.messages[1:] == ["quotas: Redis answers again"]


async def test_one_server_is_told_of_at_once_and_not_all_the_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage_log, "EVERY", 0.2)
    told = OutageLog("cache")
    for _ in range(50):
        told.went("gone")
        told.lasts("another password")
        told.came_back()
    first = ["cache: gone", "cache: another password", "cache: Redis answers again"]
    assert [one for one in caplog.messages if "password" not in one][:2] == [first[0], first[2]]
    assert len([one for one in caplog.messages if one == "cache: gone"]) == 1
    await asyncio.sleep(0.01)
    told.went("gone again")
    found = [one for one in await until(len(caplog.messages) + 1, caplog) if "password" not in one]
    assert found[2:] == ["cache: gone"], "the first reason since the last line"
    told.came_back()
    assert caplog.messages[-1] == "cache: Redis answers again"
