"""What is said of a Redis that is away, and how often."""

from __future__ import annotations

import asyncio

import pytest

from gateway.stores import outage_log
from gateway.stores.outage_log import OutageLog
from gateway.stores.redis_link import RedisLink
from gateway.stores.store import StoreDown

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
    monkeypatch.setattr(outage_log, "EVERY", 3600.0)
    told = OutageLog("cache")
    for _ in range(50):
        told.went("gone")
        told.lasts("another password")
        told.came_back()
    first = ["cache: gone", "cache: another password", "cache: Redis answers again"]
    assert caplog.messages == [*first, "cache: another password"]


async def test_what_was_not_told_is_told_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage_log, "EVERY", 0.01)
    told = OutageLog("cache")
    for reason in ("one", "two", "three"):
        told.went(reason)
        told.came_back()
    first = ["cache: one", "cache: Redis answers again", "cache: two", "cache: Redis answers again"]
    assert (await until(4, caplog))[:4] == first, "the first reason since the last line"


async def test_nobody_hears_of_what_is_closed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage_log, "TOGETHER", 0.01)
    told, other = OutageLog("quotas", parts=2), OutageLog("cache", parts=2)
    for one in (told, other):
        one.went("gone")
        one.went("gone")
    told.left()
    told.left()
    other.left()
    assert await until(1, caplog) == ["cache: gone (2 of 2 parts)"]
    other.came_back()
    assert caplog.messages[1:] == ["cache: Redis answers again"]
    await asyncio.sleep(0.03)
    assert not any("quotas" in one for one in caplog.messages)


async def test_a_link_that_is_closed_while_its_server_is_away_is_not_told_of_later(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage_log, "TOGETHER", 0.01)
    told = OutageLog("quotas", parts=2)
    link = RedisLink("redis://127.0.0.1:1/0", told)
    link.fail(StoreDown("gone"))
    await link.aclose()
    await link.aclose()
    await asyncio.sleep(0.03)
    assert caplog.messages == [] and told._away == 0
