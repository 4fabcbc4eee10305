"""A real server, killed and started again; see also the tests of what uses the link."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from gateway.stores.redis_link import RedisLink
from gateway.stores.store import StoreDown
from tests.conftest import RedisServer

pytestmark = pytest.mark.anyio

SECONDS = 60.0


class Uses:
    """What uses the link: it keeps what it was called with."""

    def __init__(self, url: str) -> None:
        self.calls: list[str] = []
        self.unready = 0
        self.link = RedisLink(
            url,
            "test",
            on_down=lambda error: self.calls.append("down"),
            recover=self.recover,
            on_up=lambda: self.calls.append("up"),
        )

    async def recover(self) -> None:
        await self.link.write_probe()
        self.calls.append("recover")
        if self.unready:
            self.unready -= 1
            raise StoreDown("not yet")

    async def get(self) -> object:
        return await self.link.ask(lambda client: client.get("k"), SECONDS)


@pytest.fixture
async def uses(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Uses]:
    monkeypatch.setattr("gateway.stores.redis_link.PROBE_EVERY", 0.02)
    monkeypatch.setattr("gateway.stores.redis_link.SECONDS_TO_TELL", 1e9)
    uses = Uses(own_redis.url)
    yield uses
    await uses.link.aclose()


async def back(link: RedisLink) -> None:
    async with asyncio.timeout(300):
        while link.down:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_down_and_up_again(
    own_redis: RedisServer, uses: Uses, caplog: pytest.LogCaptureFixture
) -> None:
    assert await uses.get() is None
    own_redis.kill()
    for _ in range(3):
        with pytest.raises(StoreDown):
            await uses.get()
    assert uses.link.down and uses.calls == ["down"]
    own_redis.start()
    uses.unready = 2
    await back(uses.link)
    assert uses.calls == ["down", "recover", "recover", "recover", "up"]
    assert await uses.get() is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


async def test_the_log_has_another_reason_that_keeps_it_down(
    own_redis: RedisServer, uses: Uses, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was restarted with another password, to an operator who has read that it refused connections."""
    monkeypatch.setattr("gateway.stores.redis_link.SECONDS_TO_TELL", 0.0)
    async with Redis.from_url(own_redis.url) as operator:
        await operator.config_set("requirepass", "another")
        uses.link.fail(StoreDown("gone"))
        async with asyncio.timeout(300):
            while len(caplog.records) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
        await operator.execute_command("AUTH", "another")
        await operator.config_set("requirepass", "")
    await back(uses.link)
    told = [record.getMessage() for record in caplog.records]
    assert told[0] == "test: gone" and told[2:] == ["test: Redis answers again"]
    assert "authenticate" in told[1]


async def test_a_server_that_only_reads_stays_down(own_redis: RedisServer, uses: Uses) -> None:
    # The link's own client is another with each probe while it is down.
    async with Redis.from_url(own_redis.url) as operator:
        await operator.config_set("maxmemory", "1")
        uses.link.fail(StoreDown("for a test"))
        await asyncio.sleep(0.2)
        assert uses.link.down and "recover" not in uses.calls
        await operator.config_set("maxmemory", "0")
    await back(uses.link)


async def test_a_pipeline_is_one_round_trip(uses: Uses) -> None:
    answers = await uses.link.pipeline(lambda pipeline: pipeline.set("k", b"v").get("k"), SECONDS)
    assert answers == [True, b"v"]


async def test_after_closing_nothing_is_asked(uses: Uses) -> None:
    await uses.link.aclose()
    with pytest.raises(StoreDown):
        await uses.get()
    uses.link.fail(StoreDown("late"))
    assert uses.calls == []
