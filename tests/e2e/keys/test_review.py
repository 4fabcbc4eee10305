"""What the keys of ``review`` do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.keys.harness import Look, Row, Site
from tests.serving import OPERATOR

pytestmark = pytest.mark.anyio

WORDS = "far away and long ago there lived a cat who was seldom seen by day"
GUARD = {"guards": {"it": {"kind": "topics", "words": ["cat"], "action": "flag"}}}


def review(**more: Any) -> dict[str, Any]:
    return {**GUARD, "review": {"enabled": True, **more}}


async def outcomes(site: Site) -> dict[str, float]:
    page = (await site.gateway.http.get("/metrics", headers=OPERATOR)).text
    lines = [line for line in page.splitlines() if line.startswith("tollgate_guard_reviews_total{")]
    return {line.split('outcome="')[1].split('"')[0]: float(line.rpartition(" ")[2]) for line in lines}


async def verdicts(site: Site, times: int) -> None:
    """Ask so often, each time with one finding, and wait until all are known."""
    for _ in range(times):
        answer = await site.ask(WORDS)
        async with asyncio.timeout(300):
            while True:
                stages = (await site.receipt(answer))["stages"]
                if "pending" not in stages["guard_input"]["guards"]["it"]:
                    break
                await asyncio.sleep(0.01)


async def files(site: Site, times: int) -> dict[str, list[bytes]]:
    """The lines of each file, once all are written that are to be."""
    await verdicts(site, times)
    expected = (await outcomes(site)).get("written", 0)
    state = site.folder / "state"
    async with asyncio.timeout(300):
        while True:
            found = {path.name: path.read_bytes().splitlines() for path in state.glob("*.jsonl*")}
            # Where they have been put aside twice, some are gone.
            if sum(map(len, found.values())) >= expected or len(found) == 2:
                return found
            await asyncio.sleep(0.01)


def written(times: int) -> Look:
    async def look(site: Site) -> int:
        return sum(map(len, (await files(site, times)).values()))

    return look


async def names(site: Site) -> list[str]:
    return sorted(await files(site, 6))


async def excerpt(site: Site) -> Any:
    ((line,),) = (await files(site, 1)).values()
    return json.loads(line)["excerpt"]


ROWS = [
    Row("review", review(), written(1), 1, 0, GUARD),
    Row("review.enabled", review(), written(1), 1, 0, review(enabled=False)),
    Row("review.path", review(path="odd.jsonl"), names, ["odd.jsonl"], ["findings.jsonl"], review()),
    Row("review.share", review(share=0.0), written(3), 0, 3, review()),
    Row("review.per_minute", review(per_minute=1), written(2), 1, 2, review(per_minute=2)),
    Row("review.context", review(context=3), excerpt, "… a cat wh…", WORDS, review(context=80)),
    Row(
        "review.max_bytes",
        review(max_bytes="2KB"),
        names,
        ["findings.jsonl", "findings.jsonl.1"],
        ["findings.jsonl"],
        review(),
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_it_does_what_it_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)
