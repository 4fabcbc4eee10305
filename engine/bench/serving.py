"""How long ``python -m engine serve`` takes until its health check decodes a token."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from engine.weights.source import locate

_LONGEST = 300.0
"""Seconds."""


def seconds_to_serve(folder: Path, device: str, context: int) -> float:
    """Of a folder without a tokenizer: it is given the demo model's."""
    for file in locate("demo").glob("tokenizer*"):
        if not (folder / file.name).exists():
            shutil.copy(file, folder)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "engine", "serve", "--model", str(folder), "--port", str(port)]
    command += ["--device", device, "--max-model-len", str(context)]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while time.perf_counter() - began < _LONGEST:
            if process.poll() is not None:
                raise RuntimeError(f"the server ended with status {process.returncode}")
            try:
                if httpx.get(f"http://127.0.0.1:{port}/health", timeout=10).status_code == 200:
                    return time.perf_counter() - began
            except httpx.TransportError:
                time.sleep(0.05)
        raise RuntimeError(f"the server did not answer within {_LONGEST:.0f} s")
    finally:
        process.terminate()
        process.wait(60)
