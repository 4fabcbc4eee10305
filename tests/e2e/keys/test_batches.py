"""What the keys of ``batches`` do: what is taken, what it costs, and how much of a backend lines use."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.batches.batch import ENDED
from tests.e2e.keys.harness import Look, Row, Site
from tests.serving import chat

pytestmark = pytest.mark.anyio

PRICED = {"prices": {"script/x": {"input": 1000.0, "output": 1000.0}}}


def batches(**more: Any) -> dict[str, Any]:
    return {"batches": more, **PRICED}


async def create(site: Site, lines: int, model: str = "m") -> Any:
    url = "/v1/chat/completions"
    bodies = [
        orjson.dumps({"custom_id": f"{i}", "method": "POST", "url": url, "body": chat(model, f"Hi {i}")})
        for i in range(lines)
    ]
    http = site.gateway.http
    form = {"file": ("input.jsonl", b"\n".join(bodies))}
    file = (await http.post("/v1/files", files=form, data={"purpose": "batch"})).json()["id"]
    asked = {"input_file_id": file, "endpoint": url, "completion_window": "24h"}
    return await http.post("/v1/batches", json=asked)


async def ended(site: Site, lines: int, model: str = "m") -> dict[str, Any]:
    batch = (await create(site, lines, model)).json()
    async with asyncio.timeout(300):
        while batch["status"] not in ENDED:
            await asyncio.sleep(0.02)
            found = await site.gateway.http.get(f"/v1/batches/{batch['id']}")
            if found.status_code == 404:  # it has ended, and was kept for no longer than that
                break
            batch = found.json()
    return dict(batch)


def created(lines: int = 1) -> Look:
    async def look(site: Site) -> int:
        return int((await create(site, lines)).status_code)

    return look


def status(lines: int) -> Look:
    async def look(site: Site) -> str:
        return str((await ended(site, lines))["status"])

    return look


async def factor(site: Site) -> float:
    """What a line cost, and its share of what a request of its tokens does."""
    batch = await ended(site, 1)
    async with asyncio.timeout(300):
        path = f"/v1/requests/req_{batch['id'][6:25]}00001"
        while (found := await site.gateway.http.get(path)).status_code == 404:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    whole = batch["usage"]["total_tokens"] * 0.001
    return round(float(found.json()["stages"]["quota"]["cost_usd"]) / whole, 3)


def at_once(**backend: Any) -> tuple[dict[str, Any], Look]:
    """The most lines that are in flight at a backend so slow that a look will not miss them."""
    given = {"backends": {"script": {"token_delay": "200ms", **backend}}}

    async def look(site: Site) -> int:
        busiest, batch = 0.0, asyncio.create_task(ended(site, 18))
        while not batch.done():
            metrics = await site.gateway.metrics()
            busiest = max(busiest, metrics.get('tollgate_backend_requests_in_flight{backend="script"}', 0.0))
            await asyncio.sleep(0.01)
        return int(busiest)

    return given, look


async def kept(site: Site) -> int:
    batch = await ended(site, 1)
    await asyncio.sleep(3.2)
    return int((await site.gateway.http.get(f"/v1/batches/{batch['id']}")).status_code)


SLOTS, BUSIEST = at_once(max_concurrency=8)
ROWS = [
    Row("batches", batches(enabled=False), created(), 403, 200),
    Row("batches.enabled", batches(enabled=False), created(), 403, 200),
    Row("batches.price_factor", batches(price_factor=0.2), factor, 0.2, 0.5, without=PRICED),
    Row(
        "batches.max_utilization",
        {**SLOTS, **batches(max_utilization=0.25)},
        BUSIEST,
        2,
        4,
        without=SLOTS,
    ),
    Row("batches.max_concurrency", {**SLOTS, **batches(max_concurrency=1)}, BUSIEST, 1, 4, without=SLOTS),
    Row("batches.keep", batches(keep="1s"), kept, 404, 200),
    Row("batches.max_lines", batches(max_lines=2), status(3), "failed", "completed"),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_it_does_what_it_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)
