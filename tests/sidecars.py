"""A sidecar process of a test's own, that can be killed and started again at the same socket."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.sidecar.client import SidecarClient
from gateway.sidecar.config import CONFIG, SidecarConfig
from gateway.sidecar.protocol import HELLO, Frame, FrameReader, encode

ROOT = Path(__file__).resolve().parents[1]


class SidecarProcess:
    def __init__(self, folder: Path, *, env: Mapping[str, str] | None = None, **config: Any) -> None:
        """``config`` as in ``SidecarConfig``; the path of ``folder`` must be short."""
        self.path = folder / "sidecar.sock"
        self.config = replace(SidecarConfig(socket=str(self.path)), **config)
        self.log = folder / "sidecar.log"
        self._env = {**os.environ, **(env or {}), CONFIG: self.config.to_json(), "HF_HUB_OFFLINE": "1"}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self.process is None:
            raise RuntimeError("it is not running")
        return self.process.pid

    def client(self) -> SidecarClient:
        """Close it in the event loop in which it was used."""
        return SidecarClient(self.path)

    def start(self, *, timeout: float = 300.0) -> None:
        """Returns when nothing is being loaded any more."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway.sidecar.worker"], cwd=ROOT, env=self._env, stderr=log
            )
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self.process.poll() is None:
            status = self._status()
            if status is not None and "loading" not in status["models"].values():
                return
            time.sleep(0.05)
        self.kill()
        raise RuntimeError(f"the sidecar did not come up: {self.log.read_text()}")

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _status(self) -> dict[str, Any] | None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(5)
            try:
                sock.connect(str(self.path))
                sock.sendall(encode(HELLO) + encode({"id": 1, "op": "status"}))
                reader = FrameReader()
                frames: list[Frame] = []
                while len(frames) < 2:
                    frames += reader.feed(sock.recv(65536))
            except OSError:
                return None
        return frames[1].header
