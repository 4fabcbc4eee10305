"""Processes under test: started on cores of their own, waited for, and what they take of processor and memory."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]


@contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM leaves by ``SystemExit`` here, as Ctrl-C does by ``KeyboardInterrupt``: by itself it ends no process that
    was started, and removes no folder."""
    if threading.current_thread() is not threading.main_thread():  # which alone hears signals
        yield
        return

    def leave(number: int, _: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one more would end the ending
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def completed(argv: list[str]) -> int:
    """Runs a command to its end, and returns its status."""
    with ended_in_order(), subprocess.Popen(argv) as process:
        try:
            return process.wait()
        finally:
            if process.poll() is None:
                process.terminate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(
    argv: list[str], *, cores: set[int], env: dict[str, str] | None = None, cwd: Path = ROOT
) -> Iterator[int]:
    """What it writes goes to a pipe that is read, as it does under most process managers."""
    with ended_in_order():
        process = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        reader = threading.Thread(target=_discard, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _discard(pipe: IO[bytes]) -> None:
    while os.read(pipe.fileno(), 2**16):
        pass


def wait_for(port: int, path: str = "/", seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2).read()
            return
        except urllib.error.HTTPError as error:
            if error.code != 503:  # a gateway that starts says so
                return
            time.sleep(0.2)
        except OSError:
            time.sleep(0.2)
    raise SystemExit(f"nothing answers on port {port}")


def processor_seconds(pid: int) -> float:
    """What a process and all below it have used so far."""
    ticks = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _descends(int(folder.name), pid):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def thread_seconds(pid: int) -> float:
    """What the threads of one process have used so far, to the microsecond: ``processor_seconds`` counts hundredths."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident(pid: int) -> float:
    """MiB of a process and all below it."""
    total = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and _descends(int(folder.name), pid):
            pages = int((folder / "statm").read_text().split()[1])
            total += pages * os.sysconf("SC_PAGE_SIZE")
    return total / 2**20


def _descends(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False
