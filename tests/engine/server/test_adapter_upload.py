"""Adapters that come as the body of a request: what is taken, what is refused, and what stays on the disk."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from engine.adapter_files import CONFIG, WEIGHTS
from engine.errors import BodyTooLarge, EngineError, InvalidRequest, StorageFull
from engine.server.adapter_upload import AdapterUploads
from engine.server.disconnect import ClientDisconnected

FILES = ((CONFIG, b"{}"), (WEIGHTS, b"weights" * 1000))


def archive(files: Sequence[tuple[str, bytes]] = FILES, **changes: Any) -> bytes:
    """``changes``: of the members' headers."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for field, value in changes.items():
                setattr(member, field, value)
            tar.addfile(member, io.BytesIO(data))
    return made.getvalue()


def send(uploads: AdapterUploads, body: bytes, *, parts: int = 3, cut: bool = False, **headers: str) -> Any:
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    given = {"content-digest": f"sha-256=:{digest}:", "content-length": str(len(body)), **headers}
    size = -(-len(body) // parts) or 1
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    if cut:
        messages[-1:] = [{"type": "http.disconnect"}]
    elif messages:
        messages[-1]["more_body"] = False

    async def receive() -> Any:
        return messages.pop(0)

    encoded = {name.replace("_", "-").encode(): value.encode() for name, value in given.items()}
    return asyncio.run(uploads.receive(receive, encoded))


@pytest.fixture
def uploads(tmp_path: Path) -> Iterator[AdapterUploads]:
    made = AdapterUploads(tmp_path, 2**22)
    yield made
    made.close()


def left(home: Path) -> list[str]:
    return sorted(path.name for own in home.iterdir() for path in own.iterdir() if path.name != ".lock")


@pytest.mark.parametrize("prefix", ["", "./"])
def test_an_archive_becomes_a_folder_named_by_its_content(
    uploads: AdapterUploads, tmp_path: Path, prefix: str
) -> None:
    files = [(prefix + name, data) for name, data in FILES]
    extra = [("README.md", b"words"), ("../../evil", b"no"), ("/etc/evil", b"no"), *files]
    folder, digest = send(uploads, archive(extra))
    assert digest == hashlib.sha256(b"".join(data for _, data in FILES)).hexdigest()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == dict(FILES)
    assert left(tmp_path) == [digest]
    # Once more, as another archive of the same: nothing is written twice. It goes with the last that has it.
    (folder / WEIGHTS).write_bytes(b"damaged")
    assert send(uploads, archive(mtime=5)) == (folder, digest)
    assert (folder / WEIGHTS).read_bytes() == FILES[1][1]
    asyncio.run(uploads.clean(folder, received=True))
    assert folder.is_dir()
    asyncio.run(uploads.clean(folder, received=True))
    assert left(tmp_path) == []


def bad_archives() -> list[tuple[str, Callable[[], bytes], str]]:
    return [
        ("noise", lambda: os.urandom(2000), "no tar archive|lacks"),
        ("empty", lambda: archive(()), f"lacks {CONFIG}"),
        ("half", lambda: archive(FILES[:1]), f"lacks {WEIGHTS}"),
        ("twice", lambda: archive((*FILES, FILES[0])), "more than once"),
        ("link", lambda: archive(FILES, type=tarfile.SYMTYPE, linkname="/etc/passwd"), "not a plain file"),
        ("hard link", lambda: archive(FILES, type=tarfile.LNKTYPE, linkname="/etc/passwd"), "not a plain"),
        ("device", lambda: archive(FILES, type=tarfile.CHRTYPE), "not a plain file"),
        ("long", lambda: archive(((CONFIG, b" " * (2**20 + 1)), FILES[1])), "larger than"),
        ("cut", lambda: archive(FILES)[:2000], "cut off|no tar archive"),
        ("compressed", lambda: b"\x1f\x8b" + archive(), "no tar archive|lacks"),
    ]


@pytest.mark.parametrize(
    ("make", "complaint"), [one[1:] for one in bad_archives()], ids=[one[0] for one in bad_archives()]
)
def test_what_is_no_adapter_leaves_nothing(
    uploads: AdapterUploads, tmp_path: Path, make: Callable[[], bytes], complaint: str
) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        send(uploads, make())
    assert left(tmp_path) == []


def test_a_body_is_what_its_digest_says_and_no_larger_than_allowed(tmp_path: Path) -> None:
    body = archive()
    small = AdapterUploads(tmp_path, 20_000)
    other = base64.b64encode(hashlib.sha256(b"other").digest()).decode()
    cases: list[tuple[type[EngineError], dict[str, str], bytes]] = [
        (InvalidRequest, {"content_digest": f"sha-256=:{other}:"}, body),
        (InvalidRequest, {"content_digest": ""}, body),
        (InvalidRequest, {"content_digest": "sha-256=:AAAA:"}, body),
        (InvalidRequest, {"content_digest": "sha-256=:A:"}, body),
        (BodyTooLarge, {}, body + bytes(20_000)),
        (BodyTooLarge, {"content_length": ""}, body + bytes(20_000)),
        (BodyTooLarge, {"content_length": "20001"}, body),
    ]
    for error, headers, data in cases:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        with pytest.raises(error):
            send(small, data, **given)
    with pytest.raises(ClientDisconnected):
        send(small, body, cut=True)
    assert left(tmp_path) == []
    assert send(small, body)[0].is_dir()
    small.close()
    assert list(tmp_path.iterdir()) == []


def test_what_engines_that_are_gone_have_left_is_removed(tmp_path: Path) -> None:
    dead = tmp_path / "uploads-dead"
    (dead / "something").mkdir(parents=True)
    (dead / ".lock").touch()
    mine = tmp_path / "adapters"
    mine.mkdir()
    one, two = (AdapterUploads(tmp_path, 2**20) for _ in range(2))
    first, _ = send(one, archive())
    assert mine.is_dir() and not dead.exists()
    # Another engine that lives has its own.
    second, _ = send(two, archive())
    assert first.is_dir() and second.is_dir() and first.parent != second.parent
    one.close()
    two.close()
    assert list(tmp_path.iterdir()) == [mine]


def test_a_disk_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    uploads = AdapterUploads(tmp_path / "none", 2**20)
    with pytest.raises(StorageFull, match="--adapter-folder"):
        send(uploads, archive())
