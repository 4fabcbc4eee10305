"""What a benchmark that is told to leave takes with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.engine.live import alive

PREFIX = """
import os, sys, time
from benchmarks.processes import completed, running
sleeper = "import os, sys, time; open(sys.argv[1], 'w').write(f'{os.getpid()} '); time.sleep(3600)"
child = [sys.executable, "-c", sleeper, sys.argv[1]]
"""
WAYS = {
    "running": "with running(child, cores=os.sched_getaffinity(0)):\n    time.sleep(3600)",
    "completed": "completed(child)",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_process_that_it_started_ends_with_it(way: str, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    process = subprocess.Popen([sys.executable, "-c", PREFIX + WAYS[way], str(note)])
    try:
        deadline = time.monotonic() + 300
        while not (note.exists() and note.read_text().endswith(" ")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 143
    finally:
        process.kill()
        process.wait()
    assert not alive(int(note.read_text()))
