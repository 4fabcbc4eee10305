"""Shared figures on a disk that fills up, in processes of their own: what goes wrong there is no exception."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.observe.prometheus.files import FILES, FIRST, FOLDER, SLACK, MetricFiles

COUNT = """
import sys
from gateway.observe.prometheus import files
files.share_or_not()
from gateway.observe.metrics import Metrics

metrics = Metrics()
for number in range(int(sys.argv[1])):
    metrics.requests.labels(f"model-{number}", "b" * 100, "200").inc()
    metrics.seconds.labels(f"model-{number}").observe(1.0)
    metrics.flush()
body = metrics.render()
print(body.count(b"tollgate_requests_total{"))
"""


def on_a_disk_of(size: str, folder: Path, models: int) -> subprocess.CompletedProcess[str]:
    """The figures of so many models, on a file system of its own."""
    folder.mkdir()
    mounting = f"mount -t tmpfs -o size={size} tollgate '{folder}' && exec \"$@\""
    return subprocess.run(
        ["unshare", "-Urm", "sh", "-c", mounting, "sh", sys.executable, "-c", COUNT, str(models)],
        env={**os.environ, FOLDER: str(folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def can_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-Urm", "mount", "-t", "tmpfs", "tollgate", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class TestAFullDisk:
    @pytest.fixture(autouse=True)
    def _mounts(self, tmp_path: Path) -> None:
        if not can_mount(tmp_path):
            pytest.skip("no file systems can be mounted here")

    def test_new_metrics_are_dropped(self, tmp_path: Path) -> None:
        done = on_a_disk_of("2m", tmp_path / "disk", 1000)
        assert done.returncode == 0, done.stderr
        assert 0 < int(done.stdout) < 1000
        assert "no disk space for more metrics (" in done.stderr

    def test_without_space_they_are_not_shared(self, tmp_path: Path) -> None:
        done = on_a_disk_of("64k", tmp_path / "disk", 20)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) == 20
        assert "this worker's metrics are not shared with the other workers" in done.stderr

    def test_on_a_large_one_nothing_is_missing(self, tmp_path: Path) -> None:
        done = on_a_disk_of("64m", tmp_path / "disk", 1000)
        assert (done.returncode, done.stdout, done.stderr) == (0, "1000\n", "")


def test_space_is_allocated_before_it_is_used(tmp_path: Path) -> None:
    space = MetricFiles(tmp_path, 7)
    assert space.allocate()
    files = [tmp_path / f"{kind}_7.db" for kind in FILES]
    assert all(file.stat().st_blocks * 512 >= FIRST for file in files)
    with files[0].open("r+b") as file:
        file.write((FIRST - SLACK + 8).to_bytes(4, sys.byteorder))
    assert space.allocate()
    assert [file.stat().st_blocks * 512 >= 2 * FIRST for file in files] == [
        True,
        *[False] * (len(FILES) - 1),
    ]


def test_every_kind_of_file_is_known(tmp_path: Path) -> None:
    """A kind of metric that is new would be written to a file without allocated space."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT, "1"],
        env={**os.environ, FOLDER: str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout == "1\n"
    assert {file.name.rpartition("_")[0] for file in tmp_path.iterdir()} == set(FILES)
