"""What the keys of ``record`` do: whose requests are kept, with what of them, where, and for how long."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.recording.sampling import fraction
from tests.e2e.keys.harness import Look, Row, Site, a_site, shows
from tests.recordings import at_once, places, recorded
from tests.serving import KEY, OTHER_KEY

pytestmark = pytest.mark.anyio

ALL = {"enabled": True, "rotate": "50ms"}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once(monkeypatch)


def record(**more: Any) -> dict[str, Any]:
    return {"record": {**ALL, **more}}


async def written(site: Site, count: int) -> None:
    async with asyncio.timeout(300):
        while True:
            metrics = await site.gateway.metrics()
            name = 'tollgate_recorded_requests_total{outcome="written"}'
            if metrics.get(name, 0.0) >= count and not metrics["tollgate_recordings_waiting"]:
                return
            await asyncio.sleep(0.05)


async def tenants(site: Site) -> list[str]:
    """Whose requests are recorded, of one each of two tenants."""
    for token in (KEY, OTHER_KEY):
        await site.ask(token=token)
    return sorted({one.tenant for one in await recorded(site.folder, 1)})


async def text(site: Site) -> Any:
    await site.ask("I am ann@example.com")
    (one,) = await recorded(site.folder, 1)
    return one.text and json.loads(one.text)["messages"][0]["content"]


def in_folder(name: str) -> Look:
    async def look(site: Site) -> bool:
        await site.ask()
        await recorded(site.folder, 1)
        return (site.folder / "state" / name).is_dir()

    return look


def _segments(site: Site) -> list[Path]:
    folder = site.folder / "state" / "recordings"
    return [one for one in folder.iterdir() if one.is_file()] if folder.is_dir() else []


ROWS = [
    Row("record.tenants", record(tenants=["rival"]), tenants, ["rival"], ["acme"], record(tenants=["acme"])),
    Row("record.texts", record(texts="masked"), text, "I am <EMAIL_ADDRESS_1>", None, record()),
    Row("record.path", record(path="elsewhere"), in_folder("elsewhere"), True, False, record()),
]


@pytest.mark.parametrize("row", ROWS, ids=repr)
async def test_it_does_what_it_says(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)


@shows("record.share")
async def test_a_share_is_told_by_the_ids(tmp_path: Path) -> None:
    async with a_site(tmp_path, record(share=0.5)) as site:
        ids = [(await site.ask()).headers["x-request-id"] for _ in range(20)]
        mine = {one for one in ids if fraction(one) < 0.5}
        assert 0 < len(mine) < 20
        assert {one.request_id for one in await recorded(tmp_path, len(mine))} == mine


@shows("record.rotate")
async def test_a_segment_waits_for_so_long_until_it_is_put_away(tmp_path: Path) -> None:
    async with a_site(tmp_path / "soon", record()) as site:
        await site.ask()
        assert len(await recorded(tmp_path / "soon", 1)) == 1
    async with a_site(tmp_path / "late", record(rotate="1h")) as site:
        await site.ask()
        await written(site, 1)
        assert not _segments(site)


@shows("record", "record.enabled")
async def test_nothing_is_recorded_where_it_is_off(tmp_path: Path) -> None:
    async with a_site(tmp_path, {"record": {"enabled": False}}) as site:
        await site.ask()
    assert not (tmp_path / "state" / "recordings").exists() and not places(tmp_path).table.exists


@shows("record.key_file")
async def test_its_secret_opens_what_was_recorded(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("s" * 40)
    async with a_site(tmp_path, record(key_file=str(file))) as site:
        await site.ask()
        assert len(await recorded(tmp_path, 1)) == 1
    assert not (tmp_path / "state" / "record.key").exists()


@shows("record.retention", "record.max_bytes")
@pytest.mark.parametrize("bound", [{"retention": "1ms"}, {"max_bytes": "1B"}])
async def test_what_is_too_old_or_too_much_is_deleted(tmp_path: Path, bound: dict[str, str]) -> None:
    """By the gateway that starts next, and then every ten minutes."""
    async with a_site(tmp_path, record()) as site:
        await site.ask()
        await recorded(tmp_path, 1)
    async with a_site(tmp_path, record(**bound)) as site, asyncio.timeout(300):
        while _segments(site):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert not places(tmp_path).table.recorded()
