"""What the keys of ``tiers`` do at a backend that is full, those of limits apart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.keys.harness import UP, Look, Row, Site, second_while_the_first_hangs, statuses, waits
from tests.fakes import Action, completion, reply
from tests.serving import KEY, OTHER_KEY, key

pytestmark = pytest.mark.anyio

FINE = reply(completion("from up"))
BUSY = ((Action.HANG,), FINE)
ENGINE = {"backends": {"up": {"kind": "engine", "base_url": UP.removesuffix("/v1")}}}
MINE = {"tenants": {"acme": {"tier": "gold"}}}


def gold(places: int | None = None, **more: Any) -> dict[str, Any]:
    """acme's tier is ``gold``; ``up`` has so many places."""
    room = {} if places is None else {"backends": {"up": {"max_concurrency": places}}}
    return {**MINE, "tiers": {"gold": more}, **room}


def hint(name: str) -> Look:
    """What the engine is told."""

    async def look(site: Site) -> str | None:
        await site.ask(model="up")
        return site.up.requests[-1].headers.get(f"x-tollgate-{name}")

    return look


async def third_in_line(site: Site) -> str:
    """What a third request gets where one is under way and another waits."""
    tasks = [asyncio.create_task(site.ask(model="up"))]
    await site.up.arrived()
    tasks.append(asyncio.create_task(site.ask(model="up")))
    await asyncio.wait([tasks[1]], timeout=0.3)
    tasks.append(asyncio.create_task(site.ask(model="up")))
    seen = "waits" if await waits(tasks[2]) else tasks[2].result().json()["error"]["code"]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return str(seen)


def served_first(patience: float) -> Look:
    """Of two tiers' requests: gold's has waited for ``patience`` seconds when the heavier one's comes."""

    async def look(site: Site) -> list[str]:
        tasks = [asyncio.create_task(site.ask("under way", model="up"))]
        await site.up.arrived()
        tasks.append(asyncio.create_task(site.ask("gold", model="up")))
        await asyncio.sleep(patience)
        tasks.append(asyncio.create_task(site.ask("heavy", model="up", token=OTHER_KEY)))
        await asyncio.sleep(0.2)
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return [request.json()["messages"][0]["content"] for request in site.up.requests[1:]]

    return look


def beside_a_heavy_one(**more: Any) -> dict[str, Any]:
    return {
        "keys": [key(KEY, "one", tenant="acme"), key(OTHER_KEY, "two", tenant="rival")],
        "tenants": {"acme": {"tier": "gold"}, "rival": {"tier": "heavy"}},
        "tiers": {"gold": {"weight": 1.0, **more}, "heavy": {"weight": 3.0}},
        "backends": {"up": {"max_concurrency": 1}},
    }


async def who_answers_the_second(site: Site) -> str:
    first = asyncio.create_task(site.ask(model="up"))
    await site.up.arrived()
    second = await site.ask(model="up")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    return second.headers["x-tollgate-model"]


async def ever_refused(site: Site) -> bool:
    """Once it is known how long answers take. Now and then one is let through to learn whether that still holds."""
    return 503 in await statuses(4, model="up")(site)


async def stream_refused(site: Site) -> int | str:
    """With which status a stream ends whose place does not come in 300 ms."""
    return await second_while_the_first_hangs(site, stream=True)


async def stream_refused_of_one_that_asks(site: Site) -> int | str:
    return await second_while_the_first_hangs(site, stream=True, headers={"x-tollgate-queue": "positions"})


def at(share: float, action: str, **more: Any) -> dict[str, Any]:
    return gold(2, on_saturation={"at": share, "action": action, **more})


TIER = "tiers.<name>"
ROWS = [
    Row(
        "tiers",
        {**MINE, "tiers": {"gold": {"quotas": {"requests_per_minute": 1}}}},
        statuses(2),
        [200, 429],
        [200, 200],
        MINE,
    ),
    Row(f"{TIER}.priority", ENGINE | gold(priority=7), hint("priority"), "7", "0", ENGINE),
    Row(f"{TIER}.weight", ENGINE | gold(weight=8.0), hint("weight"), "8", "1", ENGINE),
    Row(
        f"{TIER}.max_wait",
        gold(1, max_wait="50ms"),
        second_while_the_first_hangs,
        503,
        "waits",
        gold(1),
        up=BUSY,
    ),
    Row(
        f"{TIER}.patience",
        gold(1, max_wait="300ms", patience="100ms"),
        stream_refused,
        200,
        503,
        gold(1, max_wait="300ms"),
        up=BUSY,
    ),
    Row(
        f"{TIER}.patience",
        gold(1, max_wait="800ms"),
        stream_refused_of_one_that_asks,
        200,
        503,
        gold(1, max_wait="300ms"),
        up=BUSY,
    ),
    Row(f"{TIER}.max_queue", gold(1, max_queue=1), third_in_line, "queue_full", "waits", gold(1), up=BUSY),
    Row(
        f"{TIER}.ageing",
        beside_a_heavy_one(ageing="10ms"),
        served_first(0.5),
        ["gold", "heavy"],
        ["heavy", "gold"],
        beside_a_heavy_one(ageing="1h"),
        up=BUSY,
    ),
    Row(f"{TIER}.sla", gold(sla="100ms"), ever_refused, True, False, gold(), up=((0.3, *FINE),)),
    Row(
        f"{TIER}.on_saturation",
        at(0.5, "shed"),
        second_while_the_first_hangs,
        503,
        200,
        gold(2),
        up=BUSY,
    ),
    Row(
        f"{TIER}.on_saturation.action",
        at(0.5, "wait"),
        second_while_the_first_hangs,
        "waits",
        503,
        at(0.5, "shed"),
        up=BUSY,
    ),
    Row(
        f"{TIER}.on_saturation.at",
        at(0.5, "shed"),
        second_while_the_first_hangs,
        503,
        200,
        at(0.9, "shed"),
        up=BUSY,
    ),
    Row(
        f"{TIER}.on_saturation.to",
        at(0.5, "downgrade", to="other"),
        who_answers_the_second,
        "other",
        "m",
        at(0.5, "downgrade", to="m"),
        up=BUSY,
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_it_does_what_it_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)
