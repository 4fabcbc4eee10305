"""Contents in a bucket, on a server that speaks S3's API: whole, in parts, broken off, and out of reach."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gateway.databases.opening import open_tables
from gateway.errors import UpstreamUnavailable
from gateway.files.blobs import BlobError, BlobMissing
from gateway.files.file_table import FILES, FileTable
from gateway.files.s3 import PART, S3Blobs
from gateway.files.stored_files import Bounds, StoredFiles
from gateway.policy.schema import FileSettings, LedgerSettings
from tests.gateway.files.test_stored_files import content, keep, pieces
from tests.s3_server import BUCKET, S3Server, cutting, settings

pytestmark = pytest.mark.anyio


@pytest.fixture
def blobs(s3_server: S3Server) -> Iterator[S3Blobs]:
    s3_server.empty()
    found = S3Blobs(BUCKET, "in/it/", settings(s3_server.url))
    yield found
    found.close()


@pytest.fixture
async def store(blobs: S3Blobs, tmp_path: Path) -> AsyncIterator[StoredFiles]:
    table = FileTable(open_tables(FILES, LedgerSettings(), tmp_path))
    files = StoredFiles(table, blobs, Bounds(100 * PART, 100 * PART, 100))
    yield files
    await files.aclose()


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 3 * PART])
async def test_what_is_read_is_what_was_written(store: StoredFiles, s3_server: S3Server, size: int) -> None:
    whole = os.urandom(size)
    file = await keep(store, whole)
    (key,) = s3_server.keys()
    assert key.startswith("in/it/") and s3_server.begun() == []
    assert await content(store, file) == whole
    for start in {size // 2, max(0, size - 1), size}:
        assert await content(store, file, start) == whole[start:]
    assert await store.delete("acme", file.id)
    assert s3_server.keys() == []


async def test_what_is_cut_leaves_nothing(store: StoredFiles, s3_server: S3Server) -> None:
    async def cut() -> AsyncIterator[bytes]:
        yield b"x" * PART
        assert len(s3_server.begun()) == 1 and s3_server.keys() == []
        yield b"x" * PART
        raise ConnectionError

    with pytest.raises(ConnectionError):
        await store.create("acme", "x", "batch", cut(), key_id="k")
    assert s3_server.begun() == [] and s3_server.keys() == []


def test_what_a_crash_has_begun_is_deleted(blobs: S3Blobs, s3_server: S3Server) -> None:
    for name in ("a", "ab"):
        blobs.writer(name).write(b"x" * PART)
    blobs.delete("a")
    assert s3_server.begun() == ["in/it/ab"], "another's whose name begins alike is left"


def test_what_is_not_there_is_missing(blobs: S3Blobs) -> None:
    with pytest.raises(BlobMissing):
        blobs.reader("a", 0).read(9)
    blobs.delete("a")
    blobs.writer("a").abort()


@pytest.mark.parametrize("times", [1, 2])
def test_a_read_goes_on_where_it_broke_off(blobs: S3Blobs, s3_server: S3Server, times: int) -> None:
    whole = os.urandom(PART)
    writer = blobs.writer("a")
    writer.write(whole)
    writer.commit()
    with cutting(s3_server.port, after=PART // 4, times=times) as url:
        through = S3Blobs(BUCKET, "in/it/", settings(url))
        reader, read = through.reader("a", 0), b""
        while piece := reader.read(2**18):
            read += piece
        reader.close()
        through.close()
    assert read == whole


async def test_a_bucket_that_is_not_there_is_told(
    store: StoredFiles, s3_server: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    store._blobs = S3Blobs("no-such-bucket", "", settings(s3_server.url))
    with pytest.raises(UpstreamUnavailable) as raised:
        await store.create("acme", "x", "batch", pieces(b"abc"), key_id="k")
    assert "bucket" not in raised.value.message and "NoSuchBucket" in caplog.text


def test_a_server_that_is_not_there_is_told() -> None:
    blobs = S3Blobs(BUCKET, "", settings("http://127.0.0.1:1"))
    with pytest.raises(BlobError):
        blobs.delete("a")
    blobs.close()


def test_without_botocore_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("botocore.config", "botocore.session"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BlobError, match=r"pip install .*\[s3\]"):
        S3Blobs(BUCKET, "", settings("http://127.0.0.1:1")).delete("a")


@pytest.mark.parametrize(
    ("store", "bucket"),
    {
        "folder": None,
        "s3://abc": ("abc", ""),
        "s3://abc/": ("abc", ""),
        "s3://a.b-c/d/e/": ("a.b-c", "d/e/"),
    }.items(),
)
def test_where_contents_are(store: str, bucket: tuple[str, str] | None) -> None:
    assert FileSettings(store=store).bucket == bucket


@pytest.mark.parametrize("store", ["", "s3://", "s3://A", "s3://ab/c?d", "https://bucket", "Folder"])
def test_where_contents_cannot_be(store: str) -> None:
    with pytest.raises(ValueError, match="should be 'folder'"):
        FileSettings(store=store)
