"""What the keys of ``caches.exact`` do; ``store`` and ``cache_store``; the ledger."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import RedisServer
from tests.e2e.keys.harness import Look, Row, Site, a_site, shows
from tests.fakes import completion, reply
from tests.serving import KEY, OTHER_KEY, key

pytestmark = pytest.mark.anyio

LONG = {"backends": {"script": {"script": [{"reply": "word " * 400}]}}}
"""An answer of two kilobytes."""
COLLEAGUES = {"keys": [key(KEY, "one", tenant="acme"), key(OTHER_KEY, "two", tenant="acme")]}
CACHE = "x-tollgate-cache"


def exact(**more: Any) -> dict[str, Any]:
    return {"caches": {"exact": more}}


def second(pause: float = 0.0, token: str = KEY) -> Look:
    """Whether the second of two equal requests comes out of the cache."""

    async def look(site: Site) -> bool:
        await site.ask("again")
        await asyncio.sleep(pause)
        return (await site.ask("again", token=token)).headers.get(CACHE) == "exact"

    return look


async def first_after_others(site: Site) -> bool:
    """Whether an answer is still there when others have come."""
    for words in ("a", "b", "c", "d", "a"):
        response = await site.ask(words)
    return response.headers.get(CACHE) == "exact"


async def calls_for_two_at_once(site: Site) -> int:
    await asyncio.gather(site.ask(model="up"), site.ask(model="up"))
    return len(site.up.requests)


async def files(site: Site) -> set[str]:
    """What lies in the state folder a while after a request."""
    await site.ask()
    found: set[str] = set()
    for _ in range(20):
        found = {file.name for file in (site.folder / "state").glob("*.sqlite")}
        if found:
            break
        await asyncio.sleep(0.05)
    return found


ROWS = [
    Row("caches", exact(), second(), True, False),
    Row("caches.exact", exact(), second(), True, False),
    Row("caches.exact.ttl", exact(ttl="50ms"), second(pause=0.2), False, True, exact()),
    Row(
        "caches.exact.max_bytes",
        LONG | exact(max_bytes="5KiB"),
        first_after_others,
        False,
        True,
        LONG | exact(),
    ),
    Row("caches.exact.max_entry", LONG | exact(max_entry="1KiB"), second(), False, True, LONG | exact()),
    Row(
        "caches.exact.per",
        COLLEAGUES | exact(per="key"),
        second(token=OTHER_KEY),
        False,
        True,
        COLLEAGUES | exact(),
    ),
    Row(
        "caches.exact.single_flight",
        exact(single_flight=False),
        calls_for_two_at_once,
        2,
        1,
        exact(),
        up=((0.5, *reply(completion())),),
    ),
    Row("ledger", {"ledger": {"path": "books.sqlite"}}, files, {"books.sqlite"}, {"ledger.sqlite"}),
    Row("ledger.path", {"ledger": {"path": "books.sqlite"}}, files, {"books.sqlite"}, {"ledger.sqlite"}),
    Row("ledger.enabled", {"ledger": {"enabled": False}}, files, set(), {"ledger.sqlite"}),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_it_does_what_it_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)


@shows("store")
async def test_gateways_with_one_store_count_together(tmp_path: Path, redis_server: RedisServer) -> None:
    limits = {"tenants": {"acme": {"quotas": {"requests_per_minute": 1}}}}
    for store, then in ((redis_server.url.replace("/0", "/7"), 429), ("memory", 200)):
        policy = {**limits, "store": store}
        name = store.partition(":")[0]
        async with (
            a_site(tmp_path / f"{name}-1", policy) as one,
            a_site(tmp_path / f"{name}-2", policy) as two,
        ):
            assert (await one.ask()).status_code == 200
            assert (await two.ask()).status_code == then


@shows("cache_store")
async def test_gateways_with_one_cache_store_share_answers(tmp_path: Path, redis_server: RedisServer) -> None:
    for store, then in ((redis_server.url.replace("/0", "/8"), "exact"), ("same", "miss")):
        policy = {**exact(), "store": "memory", "cache_store": store}
        name = store.partition(":")[0]
        async with (
            a_site(tmp_path / f"{name}-1", policy) as one,
            a_site(tmp_path / f"{name}-2", policy) as two,
        ):
            await one.ask("shared")
            for _ in range(20):  # it is kept beside the answer
                response = await two.ask("shared", headers={"cache-control": "only-if-cached"})
                if response.status_code == 200:
                    break
                await asyncio.sleep(0.05)
            assert response.headers.get(CACHE) == then


@shows("on_store_failure")
async def test_while_the_store_is_away(tmp_path: Path, own_redis: RedisServer) -> None:
    own_redis.kill()
    limits = {"tenants": {"acme": {"quotas": {"requests_per_minute": 1}}}, "store": own_redis.url}
    for what, then in (("closed", [503, 503]), ("open", [200, 200]), ("local", [200, 429])):
        async with a_site(tmp_path / what, {**limits, "on_store_failure": what}) as site:
            assert [(await site.ask()).status_code for _ in range(2)] == then


@shows("cache_epochs")
async def test_another_epoch_finds_nothing_of_the_one_before(tmp_path: Path) -> None:
    async with a_site(tmp_path, exact()) as site:
        await site.ask()
        assert (await site.ask()).headers[CACHE] == "exact"
        policy = yaml.safe_load((site.gateway.folder / "gateway.yaml").read_text())
        site.gateway.write({**policy, "cache_epochs": {"rival": 1, "acme": 1}})
        await site.gateway.generation(2)
        assert (await site.ask()).headers[CACHE] == "miss"
