"""Two workers of one gateway: what one is told, and that they change a server one after the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from gateway.adapters import uploads
from gateway.adapters.adapter import Adapter
from gateway.adapters.room import CHANGED, USES, AdapterRoom
from gateway.adapters.uploads import KEEPER, Asked
from gateway.control.peers import Peers
from gateway.databases.opening import open_tables
from gateway.errors import BadRequest, Conflict
from gateway.files.file_table import FILES, FileTable
from gateway.files.folder import FolderBlobs
from gateway.files.stored_files import Bounds, StoredFiles
from gateway.observe.metrics import Metrics
from gateway.policy.schema import LedgerSettings, Policy
from tests.adapter_server import AdapterServer, adapter_server
from tests.adapters import CONFIG, safetensors, shapes
from tests.fakes import policy

pytestmark = pytest.mark.anyio


def of(server: AdapterServer, slots: int) -> Policy:
    return policy(
        backends={"engine": {"kind": "engine", "base_url": server.url}},
        models={"base": {"targets": [{"backend": "engine", "model": "base"}]}},
        adapters={"servers": {"engine": {"slots": slots}}},
    )


@asynccontextmanager
async def stored(folder: Path) -> AsyncIterator[StoredFiles]:
    table = FileTable(open_tables(FILES, LedgerSettings(), folder))
    files = StoredFiles(table, FolderBlobs(folder / "files"), Bounds(2**20, 2**24, 1000))
    yield files
    await files.aclose()


@asynccontextmanager
async def rooms(folder: Path, server: AdapterServer, slots: int) -> AsyncIterator[list[AdapterRoom]]:
    async with AsyncExitStack() as stack:
        files = await stack.enter_async_context(stored(folder))
        found = []
        for worker in (1, 2):
            peers = Peers(folder / "peers", worker)
            room = AdapterRoom(folder, peers, Metrics(), worker=worker)
            peers.handlers = {CHANGED: room.told, USES: room.asked}
            await stack.enter_async_context(peers)
            await room.update(of(server, slots))
            room.use(of(server, slots), files, {"engine": "engine"})
            stack.push_async_callback(room.aclose)
            found.append(room)
        yield found


async def made(room: AdapterRoom, name: str, seed: int, sha256: str | None = None) -> Adapter:
    async def piece(data: bytes) -> AsyncIterator[bytes]:
        yield data

    ids = [
        (await room.files.create("acme", "f", "fine-tune", piece(data), key_id="k")).id
        for data in (json.dumps(CONFIG).encode(), safetensors(shapes(), seed=seed))
    ]
    return await room.create(Asked("acme", "k", name, "base", *ids, sha256))


async def test_the_other_worker_knows_at_once_what_was_made_and_deleted(tmp_path: Path) -> None:
    async with adapter_server() as server, rooms(tmp_path, server, 4) as (one, other):
        adapter = await made(one, "support", 1)
        assert other.catalogue.find("acme", "base", "support") == adapter
        assert other.catalogue.find("rival", "base", "support") is None
        assert await other.delete("acme", adapter.id)
        assert one.catalogue.find("acme", "base", "support") is None
        assert not await one.delete("acme", adapter.id)


async def test_workers_take_turns_and_leave_each_other_what_they_use(tmp_path: Path) -> None:
    async with adapter_server() as server, rooms(tmp_path, server, 1) as (one, other):
        first, second = await made(one, "a", 1), await made(one, "b", 2)
        ours, theirs = one.residents("engine"), other.residents("engine")
        assert ours is not None and theirs is not None
        async with ours.using(first, 300.0):
            waiting = asyncio.create_task(theirs.using(second, 300.0).__aenter__())
            await asyncio.sleep(0.1)
            assert not waiting.done() and [*server.served] == [first.id]
        await waiting
        assert [*server.served] == [second.id] and server.most == 1
        async with ours.using(second, 300.0):
            pass
        assert len(server.loads) == 2  # what the other has loaded is found


async def test_what_a_crash_has_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    async with adapter_server() as server, rooms(tmp_path, server, 1) as (one, _):
        adapter = await made(one, "a", 1)

        async def nothing() -> AsyncIterator[bytes]:
            yield b"an archive without a row"

        left = await one.files.create(KEEPER, "x", "adapter", nothing(), key_id="k", lasts=True)
        assert await uploads.sweep(one.files, one.table, left.created_at) == 0
        assert await uploads.sweep(one.files, one.table, left.created_at + uploads.ORPHANED + 1) == 1
        assert await one.files.find(KEEPER, left.id) is None
        assert await one.files.find(KEEPER, adapter.archive) is not None


async def test_of_what_is_refused_nothing_is_left(tmp_path: Path) -> None:
    async with adapter_server() as server, rooms(tmp_path, server, 1) as (one, _):
        with pytest.raises(BadRequest) as refused:
            await made(one, "a", 1, sha256="0" * 64)
        assert refused.value.code == "sha256_differs"
        await made(one, "a", 1)
        with pytest.raises(Conflict):
            await made(one, "a", 2)
        kept = await one.files.listed(KEEPER, purpose=None, after=None, limit=10, newest_first=False)
        assert [file.id for file in kept] == [adapter.archive for adapter in one.catalogue.all()]
