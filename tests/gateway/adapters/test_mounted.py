"""The folder from which vLLM reads adapters."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.adapters.mounted import LEFT, MountedFolder


@pytest.mark.anyio
async def test_what_a_crash_has_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    kept, gone = (f"adapter-{number:032x}" for number in (1, 2))
    left, new = f".{kept}.0123abcd", f".{gone}.0123abcd"
    for name in (kept, gone, left, new, ".git", "others"):
        (tmp_path / name).mkdir()
    for name in (left, ".git"):
        os.utime(tmp_path / name, (0, os.stat(tmp_path).st_mtime - LEFT - 60))
    await MountedFolder(tmp_path).keep([kept])
    assert {path.name for path in tmp_path.iterdir()} == {kept, new, ".git", "others"}  # noqa: ASYNC240
