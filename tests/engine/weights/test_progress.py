from __future__ import annotations

import contextlib
import logging
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import torch

from engine.models.registry import load_model
from engine.weights import progress as module
from engine.weights.progress import progress


def test_a_log_gets_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_EVERY", 0.0)
    with caplog.at_level(logging.INFO), progress(4_000_000_000) as advance:
        advance(1_000_000_000)
        advance(2_000_000_000)
    assert [record.getMessage() for record in caplog.records] == [
        "loading weights: 25 % of 4.0 GB",
        "loading weights: 75 % of 4.0 GB",
    ]


def test_a_terminal_gets_a_bar_that_comes_to_its_end(tiny_model: Path) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    code = (
        "import torch; from pathlib import Path; from engine.models.registry import load_model;"
        f"load_model(Path({str(tiny_model)!r}), torch.device('cpu'), torch.float32)"
    )
    with os.fdopen(ours, "rb", buffering=0) as screen:
        subprocess.run([sys.executable, "-c", code], stderr=theirs, check=True, cwd=Path.cwd())
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes any more
            while data := screen.read(65536):
                shown += data
    assert "loading weights:" in shown.decode()
    assert b"100%" in shown or b"99%" in shown


def test_every_byte_of_the_tensors_is_told(tiny_model: Path) -> None:
    from engine.weights import safetensors

    reported = []
    reader = safetensors.SafetensorsReader(tiny_model, torch.device("cpu"), torch.float32)
    reader.on_read = reported.append
    reader.take("model.norm.weight", (64,))
    assert reported == [64 * 4]
    load_model(tiny_model, torch.device("cpu"), torch.float32)
