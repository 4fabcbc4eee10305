"""``python -m engine quantize`` that is told to leave."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

COMMAND = """
import runpy, sys, time
from engine.quantizer import run
def quantize(folder, target, *_, **__):
    (target / "part").touch()
    time.sleep(3600)
run.quantize = quantize
sys.argv = ["engine", "quantize", *sys.argv[1:]]
runpy.run_module("engine", run_name="__main__")
"""


def test_its_scratch_folder_goes_with_it(tiny_model: Path, tmp_path: Path) -> None:
    arguments = [str(tiny_model), "--method", "rtn", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments], stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 300
        while not list(tmp_path.glob(".out-*/part")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=300)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, said) == (143, b"")
    assert list(tmp_path.iterdir()) == []
