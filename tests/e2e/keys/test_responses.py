"""What the keys of ``responses`` do: whether a response can be had again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.keys.harness import Look, Row, Site

pytestmark = pytest.mark.anyio

LONG = {"backends": {"script": {"script": [{"reply": "word " * 400}]}}}
"""An answer of two kilobytes."""


def kept(**more: Any) -> dict[str, Any]:
    return {"responses": more}


def again(pause: float = 0.0, *, others: int = 0) -> Look:
    """The status of a look at a response, after a while and after others."""

    async def look(site: Site) -> int:
        first = (await site.post("/v1/responses", {"model": "m", "input": "Hi"})).json()
        for _ in range(others):
            await site.post("/v1/responses", {"model": "m", "input": "Hi"})
        await asyncio.sleep(pause)
        return (await site.gateway.http.get(f"/v1/responses/{first['id']}")).status_code

    return look


ROWS = [
    Row("responses", kept(enabled=False), again(), 404, 200),
    Row("responses.enabled", kept(enabled=False), again(), 404, 200),
    Row("responses.ttl", kept(ttl="50ms"), again(pause=0.2), 404, 200),
    Row("responses.max_bytes", LONG | kept(max_bytes="8KiB"), again(others=4), 404, 200, LONG | kept()),
    Row("responses.max_entry", LONG | kept(max_entry="1KiB"), again(), 404, 200, LONG | kept()),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_it_does_what_it_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)
