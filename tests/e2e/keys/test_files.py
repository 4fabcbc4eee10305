"""What the keys of ``files`` do: what can be uploaded, and how long it is there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.keys.harness import Look, Row, Site

pytestmark = pytest.mark.anyio


def files(**more: Any) -> dict[str, Any]:
    return {"files": more}


async def upload(site: Site, size: int = 10) -> httpx.Response:
    return await site.gateway.http.post(
        "/v1/files", files={"file": ("f.txt", b"x" * size)}, data={"purpose": "user_data"}
    )


def uploads(*sizes: int) -> Look:
    """The status of the last of several uploads."""

    async def look(site: Site) -> int:
        return [(await upload(site, size)).status_code for size in sizes][-1]

    return look


def again(pause: float) -> Look:
    """The status of a look at a file, after a while."""

    async def look(site: Site) -> int:
        file = (await upload(site)).json()["id"]
        await asyncio.sleep(pause)
        return (await site.gateway.http.get(f"/v1/files/{file}")).status_code

    return look


def in_folder(name: str) -> Look:
    """How many contents are in a folder beside the policy's."""

    async def look(site: Site) -> int:
        await upload(site)
        folder = site.folder / "state" / name
        return len(list(folder.iterdir())) if folder.exists() else 0

    return look


ROWS = [
    Row("files", files(enabled=False), uploads(10), 404, 200),
    Row("files.enabled", files(enabled=False), uploads(10), 404, 200),
    Row("files.path", files(path="elsewhere"), in_folder("elsewhere"), 1, 0),
    Row("files.max_bytes", files(max_bytes="1KiB"), uploads(2000), 413, 200),
    # A form is some two hundred bytes longer than its file.
    Row("files.max_tenant_bytes", files(max_tenant_bytes="4KiB"), uploads(2000, 2000), 400, 200),
    Row("files.max_tenant_files", files(max_tenant_files=1), uploads(10, 10), 400, 200),
    Row("files.max_age", files(max_age="1s"), again(pause=2.1), 404, 200),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_it_does_what_it_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)
