"""How many cores count as ours: a container's share, not the machine's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.worker.device import cores

HERE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("max 100000", HERE),
        ("100000 100000", 1),
        ("20000 100000", 1),
        (f"{HERE * 100000} 100000", HERE),
        ("100000000 100000", HERE),
        ("nonsense", HERE),
    ],
)
def test_a_containers_share_counts(tmp_path: Path, written: str, found: int) -> None:
    (tmp_path / "cpu.max").write_text(written + "\n")
    assert cores(tmp_path / "cpu.max") == found


def test_without_a_control_group_it_is_what_we_may_run_on(tmp_path: Path) -> None:
    assert cores(tmp_path / "none") == HERE
