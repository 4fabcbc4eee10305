"""What Linux tells of processes: their descendants, their groups, and how long they waited for a processor."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def tree(pid: int) -> list[int]:
    """``pid`` and all that descend from it, as far as they are alive."""
    found = [pid]
    for parent in found:
        try:
            for thread in (_PROC / str(parent) / "task").iterdir():
                found += map(int, (thread / "children").read_text().split())
        except OSError:  # it has ended, or is not ours to read
            continue
    return found


def group_lives(group: int) -> bool:
    """Whether a process of the group still runs. One that has ended and that nobody has waited for does not."""
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            try:
                state, _, found = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            except (OSError, ValueError):
                continue
            if int(found) == group and state not in "ZX":
                return True
    return False


def waited(pid: int) -> dict[int, float]:
    """Seconds that each thread of ``pid`` and of its descendants could have run and had no processor
    ("time spent waiting on a runqueue", https://docs.kernel.org/scheduler/sched-stats.html).

    Sleeping, for a device too, and being stopped is no waiting. Empty where the system does not tell.
    """
    found: dict[int, float] = {}
    for process in tree(pid):
        with suppress(OSError):  # it has ended, or this is not Linux
            for thread in (_PROC / str(process) / "task").iterdir():
                with suppress(OSError, IndexError):
                    found[int(thread.name)] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return found
