"""Which files of KV blocks are deleted: none that an engine has, and of the others the oldest."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from engine.worker.tiers import block_file
from engine.worker.tiers.block_file import NAME, BlockFile
from engine.worker.tiers.unused_files import LONGEST, remove_unused

SIZE = 4096
ROOM = 64 * SIZE


def opened(folder: Path) -> BlockFile:
    return BlockFile(folder, {"model": "a"}, SIZE, ROOM, patience=0.0)


def left(folder: Path, model: str, *, days: float, size: int = SIZE) -> Path:
    """A file of an engine that has ended."""
    path = folder / (model * 32) / NAME
    opened(path.parent).close()
    path.write_bytes(bytes([1]) * size)
    os.utime(path, (time.time() - 86400 * days,) * 2)
    return path


def taken(path: Path) -> int:
    return path.stat().st_blocks * 512


def test_what_was_last_used_first_goes_and_what_an_engine_has_stays(tmp_path: Path) -> None:
    stale = left(tmp_path, "a", days=LONGEST / 86400 + 1)
    first, second, third = (
        left(tmp_path, model, days=days, size=16 * SIZE) for model, days in zip("bcd", (3, 2, 1), strict=True)
    )
    running = opened(tmp_path / ("e" * 32))
    os.utime(running.path, (0, 0))
    others = [tmp_path / "notes" / NAME, third.parent / "notes", tmp_path / NAME]
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.touch()
        os.utime(other, (0, 0))
    remove_unused(tmp_path, taken(second) + taken(third))
    assert [path.exists() for path in (stale, first, second, third)] == [False, False, True, True]
    assert not stale.parent.exists()
    assert running.path.exists() and all(other.exists() for other in others)
    remove_unused(tmp_path, 0)
    assert not second.exists() and not third.exists() and third.parent.exists()
    assert running.path.exists()
    running.close()
    # It was used until now.
    remove_unused(tmp_path, ROOM)
    assert running.path.exists()


def test_a_file_that_is_deleted_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, deleted = block_file._lock, []

    def late(file: int, patience: float) -> bool:
        if not deleted:
            deleted.append(True)
            remove_unused(tmp_path, 0)
        return lock(file, patience)

    monkeypatch.setattr(block_file, "_lock", late)
    file = opened(tmp_path / ("a" * 32))
    assert deleted
    assert os.path.samestat(os.fstat(file._file), file.path.lstat())
    file.close()
