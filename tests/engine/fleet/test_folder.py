"""Folders of sockets: what a killed process left goes, what a living one has stays."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from engine.fleet.folder import PREFIX, socket_folder

HOLDS = """
from engine.fleet.folder import socket_folder
with socket_folder() as folder:
    print(folder, flush=True)
    input()
"""


def test_what_a_killed_process_left_goes_and_what_a_living_one_has_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(outside)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])},
    ) as other:
        assert other.stdout is not None
        left = Path(other.stdout.readline().decode().strip())
        (left / "1.sock").touch()
        with socket_folder() as folder:
            assert folder.is_dir() and folder != left
            assert (left / "1.sock").exists()
            other.kill()
            other.wait()
            with socket_folder():
                assert folder.is_dir()
                assert not left.exists()
    assert {one.name for one in tmp_path.iterdir()} == {"outside", f"{PREFIX}link"}
    assert (outside / "file").exists()
