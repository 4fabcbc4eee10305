"""Files in a folder, rows in both databases: what is kept, for whom, how long, and what a crash or a fault leaves."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from gateway.databases.opening import open_tables
from gateway.errors import BadRequest, BodyTooLarge, UpstreamUnavailable
from gateway.files import stored_files as module
from gateway.files.file_table import ABANDONED, FILES, FileMissing, FileTable, StoredFile
from gateway.files.folder import FolderBlobs
from gateway.files.stored_files import STEP, Bounds, StoredFiles
from gateway.policy.schema import LedgerSettings
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.anyio

BOUNDS = Bounds(file_bytes=10 * STEP, tenant_bytes=12 * STEP, tenant_files=5)


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest) -> LedgerSettings:
    if request.param == "sqlite":
        return LedgerSettings()
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return LedgerSettings(store=server.url(server.new_database()))


def opened(ledger: LedgerSettings, folder: Path, bounds: Bounds = BOUNDS) -> StoredFiles:
    return StoredFiles(FileTable(open_tables(FILES, ledger, folder)), FolderBlobs(folder / "files"), bounds)


@pytest.fixture
async def store(ledger: LedgerSettings, tmp_path: Path) -> AsyncIterator[StoredFiles]:
    files = opened(ledger, tmp_path)
    yield files
    await files.aclose()


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def keep(store: StoredFiles, content: bytes = b"abc", tenant: str = "acme", **more: int) -> StoredFile:
    return await store.create(tenant, "x.jsonl", "batch", pieces(content), key_id="k", **more)


async def content(store: StoredFiles, file: StoredFile, start: int = 0) -> bytes:
    return b"".join([piece async for piece in store.read(file.tenant, file.id, start=start)])


def in_folder(tmp_path: Path) -> list[str]:
    folder = tmp_path / "files"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


async def test_a_file_is_kept_as_it_came(store: StoredFiles, tmp_path: Path) -> None:
    whole = os.urandom(5 * STEP + 7)
    file = await store.create(
        "acme", "x.jsonl", "batch", pieces(whole[:10], b"", whole[10:]), key_id="k", expires_at=2**40
    )
    assert (file.tenant, file.filename, file.purpose, file.bytes) == ("acme", "x.jsonl", "batch", len(whole))
    assert (file.key_id, file.expires_at) == ("k", 2**40)
    assert await store.find("acme", file.id) == file
    assert await content(store, file) == whole
    assert await content(store, file, start=5 * STEP) == whole[5 * STEP :]
    assert await content(store, file, start=len(whole)) == b""
    folder = tmp_path / "files"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in folder.iterdir()] == [0o600]


async def test_nobody_else_has_it(store: StoredFiles) -> None:
    file = await keep(store)
    assert await store.find("rival", file.id) is None
    assert await store.listed("rival", purpose=None, after=None, limit=9, newest_first=True) == []
    assert not await store.delete("rival", file.id)
    with pytest.raises(FileMissing):
        await anext(aiter(store.read("rival", file.id)))
    assert await content(store, file) == b"abc"


@pytest.mark.parametrize(
    "id", ["", "file-", "../secret", "file-" + "g" * 32, "upload-" + "0" * 32, "file-%00"]
)
async def test_other_ids_are_of_no_file(store: StoredFiles, id: str) -> None:
    await keep(store)
    assert await store.find("acme", id) is None
    assert not await store.delete("acme", id)


async def test_pages_go_on_where_the_last_one_ended_even_if_that_is_deleted(store: StoredFiles) -> None:
    files = [await keep(store) for _ in range(5)]
    other = await store.create("acme", "y", "user_data", pieces(b"y"), key_id="k")

    async def page(after: str | None, *, newest: bool, purpose: str | None = "batch") -> list[str]:
        found = await store.listed("acme", purpose=purpose, after=after, limit=2, newest_first=newest)
        return [file.id for file in found]

    ids = [file.id for file in files]
    assert await page(None, newest=False) == ids[:2]
    assert await page(ids[1], newest=False) == ids[2:4]
    assert await page(None, newest=True) == [ids[4], ids[3]]
    assert await page(None, newest=True, purpose=None) == [other.id, ids[4]]
    assert await store.delete("acme", ids[1])
    assert await page(ids[1], newest=False) == ids[2:4]


async def test_deleted_is_gone(store: StoredFiles, tmp_path: Path) -> None:
    file = await keep(store)
    assert await store.delete("acme", file.id)
    assert not await store.delete("acme", file.id)
    assert await store.find("acme", file.id) is None
    assert in_folder(tmp_path) == []


async def test_what_is_cut_leaves_nothing(store: StoredFiles, tmp_path: Path) -> None:
    async def cut() -> AsyncIterator[bytes]:
        yield b"x" * (5 * STEP)
        assert len(in_folder(tmp_path)) == 1, "it is on disk, not in memory"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await store.create("acme", "x", "batch", cut(), key_id="k")
    assert in_folder(tmp_path) == []
    assert await store.listed("acme", purpose=None, after=None, limit=9, newest_first=True) == []
    upload = await store.begin("acme", key_id="k", most=BOUNDS.file_bytes)  # no room is held
    await upload.abort()


async def test_a_cancelled_upload_leaves_nothing(store: StoredFiles, tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * STEP
            begun.set()

    task = asyncio.create_task(store.create("acme", "x", "batch", endless(), key_id="k"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert in_folder(tmp_path) == []


async def test_a_file_has_a_bound(store: StoredFiles) -> None:
    with pytest.raises(BodyTooLarge):
        await store.begin("acme", key_id="k", most=BOUNDS.file_bytes + 1)
    upload = await store.begin("acme", key_id="k", most=5)
    await upload.write(b"12345")
    with pytest.raises(BodyTooLarge):
        await upload.write(b"6")
    await upload.abort()


async def test_uploads_at_once_share_the_tenants_room(store: StoredFiles) -> None:
    tried = [store.begin("acme", key_id="k", most=4 * STEP) for _ in range(5)]
    found = await asyncio.gather(*tried, return_exceptions=True)
    uploads = [one for one in found if isinstance(one, module.Upload)]
    refused = [one for one in found if isinstance(one, BadRequest)]
    assert len(uploads) == 3 and {one.code for one in refused} == {"file_storage_full"}
    await store.begin("rival", key_id="k", most=4 * STEP)  # another's room is another's
    for upload in uploads:
        await upload.write(b"x")
        await upload.finish("x", "batch")
    assert await store.begin("acme", key_id="k", most=4 * STEP), "what they did not need is free again"


async def test_a_tenant_keeps_so_many_files(store: StoredFiles) -> None:
    for _ in range(BOUNDS.tenant_files):
        file = await keep(store)
    with pytest.raises(BadRequest, match="5 files"):
        await store.begin("acme", key_id="k", most=1)
    await keep(store)  # the gateway's own are never refused
    await store.delete("acme", file.id)
    with pytest.raises(BadRequest):
        await store.begin("acme", key_id="k", most=1)


async def test_expired_is_gone_at_once_and_swept_later(store: StoredFiles, tmp_path: Path) -> None:
    kept, gone = await keep(store), await keep(store, expires_at=1)
    assert await store.find("acme", gone.id) is None
    assert [
        one.id for one in await store.listed("acme", purpose=None, after=None, limit=9, newest_first=True)
    ] == [kept.id]
    assert not await store.delete("acme", gone.id)
    assert len(in_folder(tmp_path)) == 2
    assert await store.sweep() == 1
    assert len(in_folder(tmp_path)) == 1 and await content(store, kept) == b"abc"
    assert await store.sweep() == 0


async def test_the_oldest_age_holds_for_all(ledger: LedgerSettings, tmp_path: Path) -> None:
    store = opened(ledger, tmp_path, Bounds(100, 1000, 10, max_age=60.0))
    for more in ({}, {"expires_at": 2**40}):
        file = await keep(store, **more)
        assert file.expires_at == file.created_at + 60
    await store.aclose()


async def test_what_a_crash_left_is_swept(
    store: StoredFiles, ledger: LedgerSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = await store.begin("acme", key_id="k", most=10)
    await upload.write(b"x" * 5)
    await upload._flush()
    assert await store.sweep() == 0 and len(in_folder(tmp_path)) == 1
    later = module.time.time() + ABANDONED + 10
    monkeypatch.setattr(module.time, "time", lambda: later)
    assert await store.sweep() == 1 and in_folder(tmp_path) == []
    with pytest.raises((BadRequest, UpstreamUnavailable)):  # nobody is told that it is kept
        await upload.finish("x", "batch")
    await upload.abort()


async def test_an_upload_that_goes_on_is_never_swept(
    store: StoredFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOUCH_EVERY", 0.001)
    touched, touch, later = asyncio.Event(), FileTable.touch, int(module.time.time()) + ABANDONED + 10
    loop = asyncio.get_running_loop()

    def told(table: FileTable, blobs: Sequence[str], now: int) -> None:
        touch(table, blobs, later)
        loop.call_soon_threadsafe(touched.set)

    monkeypatch.setattr(FileTable, "touch", told)
    upload = await store.begin("acme", key_id="k", most=10)
    await upload.write(b"abc")
    await touched.wait()
    monkeypatch.setattr(module.time, "time", lambda: later)
    assert await store.sweep() == 0
    assert (await upload.finish("x", "batch")).bytes == 3


async def test_another_process_has_the_same_files(
    store: StoredFiles, ledger: LedgerSettings, tmp_path: Path
) -> None:
    file = await keep(store)
    other = opened(ledger, tmp_path)
    assert await other.find("acme", file.id) == file and await content(other, file) == b"abc"
    assert await other.delete("acme", file.id)
    assert await store.find("acme", file.id) is None
    await other.aclose()


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gateway.files.folder.os.fsync", full)
    return None


async def test_a_full_disk_is_told_and_leaves_nothing(
    store: StoredFiles, tmp_path: Path, full_disk: None, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UpstreamUnavailable) as raised:
        await keep(store)
    assert raised.value.code == "file_storage_unavailable" and "No space" not in raised.value.message
    assert "No space left" in caplog.text and in_folder(tmp_path) == []


async def test_content_that_somebody_removed_is_missing(store: StoredFiles, tmp_path: Path) -> None:
    file = await keep(store)
    (tmp_path / "files" / in_folder(tmp_path)[0]).unlink()
    with pytest.raises(FileMissing):
        await content(store, file)
    assert await store.delete("acme", file.id)


async def test_a_database_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "files.sqlite").write_bytes(b"no database" * 1000)
    store = opened(LedgerSettings(), tmp_path)
    with pytest.raises(UpstreamUnavailable):
        await keep(store)
    await store.aclose()


async def test_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "files.sqlite") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    store = opened(LedgerSettings(), tmp_path)
    with pytest.raises(UpstreamUnavailable):
        await keep(store)
    await store.aclose()


def test_a_read_that_was_given_up_closes_its_file(tmp_path: Path) -> None:
    """Its thread opens the file after whoever asked has closed it."""
    (tmp_path / "file").write_bytes(b"abc")
    reader = FolderBlobs(tmp_path).reader("file", 1)
    reader.close()
    assert reader.read(9) == b"bc"
    assert reader._file is not None and reader._file.closed
