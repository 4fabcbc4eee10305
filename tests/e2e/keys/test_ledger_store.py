"""What the keys of a ledger on a PostgreSQL server do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.keys.harness import Site, a_site, shows
from tests.ledgers import opened
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio


def recorded(url: str) -> list[str]:
    """The ids of the requests that the server knows."""
    with opened(url).reading() as reader:
        found = reader.rows("SELECT request_id FROM requests", {}) if "requests" in reader.tables() else []
    return [row["request_id"] for row in found]


async def answered(site: Site, url: str) -> str:
    """The id of a request, once the server has its row."""
    name = (await site.ask()).headers["x-request-id"]
    await site.until(lambda: name in recorded(url))
    return name


@shows("ledger.store")
async def test_requests_are_written_to_the_server(postgres_server: PostgresServer, tmp_path: Path) -> None:
    url = postgres_server.url(postgres_server.new_database())
    async with a_site(tmp_path, {"ledger": {"store": url}}) as site:
        assert await answered(site, url)
        assert not list((site.folder / "state").glob("ledger.sqlite*"))


@shows("ledger.password_file")
async def test_the_password_is_read_from_a_file(postgres_server: PostgresServer, tmp_path: Path) -> None:
    database = postgres_server.new_database()
    url, file = postgres_server.tcp_url(database), tmp_path / "password"
    async with a_site(tmp_path / "site", {"ledger": {"store": url, "password_file": str(file)}}) as site:
        assert (await site.ask()).status_code == 200
        await asyncio.sleep(0.3)
        assert recorded(url) == []
        file.write_text("secret\n")
        assert await answered(site, url)
