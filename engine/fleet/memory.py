"""Memory of processes and of the machine, without torch."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
_GROUP = Path("/sys/fs/cgroup")


def taken(pids: list[int]) -> int:
    """Bytes of the processes together. A page that several share counts in parts ("Pss",
    https://docs.kernel.org/filesystems/proc.html), so that libraries that all models load count once."""
    return sum(map(_proportional, pids))


def free() -> int:
    """Bytes that can be allocated without swapping: of the machine, or what its control group leaves
    (https://docs.kernel.org/admin-guide/cgroup-v2.html)."""
    for line in (_PROC / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return min(int(line.split()[1]) * 1024, _group_left())
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _proportional(pid: int) -> int:
    try:
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):  # it has ended meanwhile
        return 0


def _group_left() -> int:
    try:
        limit = (_GROUP / "memory.max").read_text().strip()
        return int(limit) - int((_GROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return 1 << 62
