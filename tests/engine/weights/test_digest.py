from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import pytest

from engine.errors import ModelUnavailable
from engine.weights import digest
from engine.weights.digest import check_digests, file_digest, known_digest


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_pinned_files_are_checked(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_bytes(b"{}")
    check_digests(tmp_path, [])
    check_digests(tmp_path, [("", sha256(b"weights")), ("config.json", sha256(b"{}"))])
    (tmp_path / "config.json").write_bytes(b"{ }")
    with pytest.raises(ModelUnavailable, match=r"config\.json is not the file that --digest pins"):
        check_digests(tmp_path, [("", sha256(b"weights")), ("config.json", sha256(b"{}"))])


@pytest.mark.parametrize("name", ["absent.json", "../secret", "/etc/hostname"])
def test_a_name_is_of_a_file_in_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "secret").write_bytes(b"x")
    with pytest.raises(ModelUnavailable, match="no such file"):
        check_digests(tmp_path / "m", [(name, sha256(b"x"))])


def test_several_files_of_weights_need_names(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(ModelUnavailable, match="NAME=SHA256"):
        check_digests(tmp_path, [("", sha256(b"x"))])
    check_digests(tmp_path, [("a.safetensors", sha256(b"x"))])


def test_a_file_is_hashed_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "_SETTLED", 0.05)
    path, notes, read = tmp_path / "a", tmp_path / "notes", []

    def counted(path: Path) -> str:
        read.append(path)
        return file_digest(path)

    monkeypatch.setattr(digest, "file_digest", counted)
    path.write_bytes(b"one")
    assert known_digest(path, notes) == sha256(b"one")
    # It may have been changed again in the same instant: that is not remembered.
    assert not notes.exists()
    time.sleep(0.1)
    for _ in range(3):
        assert known_digest(path, notes) == sha256(b"one")
    assert len(read) == 2
    before = path.stat()
    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert known_digest(path, notes) == sha256(b"two")
    time.sleep(0.1)
    assert known_digest(path, notes) == sha256(b"two")
    (note,) = notes.iterdir()
    note.write_bytes(b"\xff damaged")
    assert known_digest(path, notes) == sha256(b"two")
