"""What a killed gateway left goes at the next start; what a living one has stays."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gateway.process.scratch import PREFIX, remove_abandoned, scratch_folder

HOLDS = """
from gateway.process.scratch import scratch_folder
with scratch_folder() as folder:
    print(folder, flush=True)
    input()
"""


def test_what_a_dead_owner_left_goes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = {"outside", "tollgate-fleet-a", f"{PREFIX}link", f"{PREFIX}being-made"}
    for name in ("outside", "tollgate-fleet-a", f"{PREFIX}being-made"):
        (tmp_path / name).mkdir()
    (tmp_path / "outside" / "file").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "outside")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])},
    ) as other:
        assert other.stdout is not None
        left = Path(other.stdout.readline().decode().strip())
        (left / "sidecar.sock").touch()
        with scratch_folder() as folder:
            assert (left / "sidecar.sock").exists()
            other.kill()
            other.wait()
            with scratch_folder():
                assert folder.is_dir()
                assert not left.exists()
    remove_abandoned(tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == kept
    assert (tmp_path / "outside" / "file").exists()
