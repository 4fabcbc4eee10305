"""How much Python a request costs a worker: counted, not timed, so that it is the same on any machine.

``counted(folder, policy)`` runs a worker as ``tollgate serve`` starts one (``tests/counted_worker.py``) before an
upstream that answers at once, and sends it requests over a socket.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from gateway.settings import SOCKET_FDS, Settings

SETTLE = 0.03
"""Seconds after which what is due after the last byte is due."""


class Upstream:
    """Answers any request with ``answer``, in a thread a connection: bytes are sent, functions are called."""

    def __init__(self) -> None:
        self.answer: list[bytes | Callable[[], None]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            while _read_message(connection):
                for step in self.answer:
                    connection.sendall(step) if isinstance(step, bytes) else step()


class Counted:
    """A running worker that counts."""

    def __init__(self, process: subprocess.Popen[str], port: int, upstream: Upstream) -> None:
        self.upstream = upstream
        self.numbers = itertools.count(100_000)
        """For requests that are to differ."""
        self._process = process
        self._client = socket.create_connection(("127.0.0.1", port), timeout=300)

    def ask(self, head: str, body: dict[str, Any]) -> bytes:
        """The whole answer to a request; ``head`` has its lines but those of its body's length and type."""
        data = json.dumps(body).encode()
        fields = f"host: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
        self._client.sendall(f"{head}\r\n{fields}\r\n\r\n".encode() + data)
        return _read_message(self._client)

    def least(self, do: Callable[[], object], times: int = 25) -> dict[str, Any]:
        """The least that one ``do`` was counted to cost: without what happened to run beside it."""
        found = []
        for _ in range(times):
            self._order("reset")
            do()
            time.sleep(SETTLE)
            self.settle()
            found.append(self._order("read"))
        return min(found, key=lambda one: int(one["bytecodes"]))

    def settle(self) -> None:
        """Returns when the worker has read what was sent to it and done what followed at once, however slow it is."""
        self._order("turn")

    def modules(self) -> set[str]:
        """The names of all modules that it has loaded."""
        return set(self._order("modules"))

    def close(self) -> None:
        self._client.close()

    def _order(self, order: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def counted(folder: Path, policy: Callable[[str], dict[str, Any]]) -> Iterator[Counted]:
    """``policy`` is made for the upstream's address."""
    upstream = Upstream()
    (folder / "policies").mkdir(parents=True)
    (folder / "policies" / "gateway.yaml").write_text(yaml.safe_dump(policy(upstream.url), sort_keys=False))
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    settings = replace(
        Settings(), policies=folder / "policies", state_dir=folder / "state", metrics_token="t"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.counted_worker"],
        # Sets are walked in the same order each time.
        env={**os.environ, **settings.to_env(), SOCKET_FDS: str(listener.fileno()), "PYTHONHASHSEED": "0"},
        pass_fds=[listener.fileno()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(log := (folder / "log").open("w")),
        text=True,
    )
    try:
        assert process.stdout is not None
        if json.loads(process.stdout.readline() or '"ended"') != "ready":
            raise RuntimeError(f"the worker did not start:\n{(folder / 'log').read_text()}")
        worker = Counted(process, listener.getsockname()[1], upstream)
        try:
            yield worker
        finally:
            worker.close()
    finally:
        process.kill()
        process.communicate()
        log.close()
        listener.close()
        upstream.close()


def _read_message(connection: socket.socket) -> bytes:
    """One HTTP message, by its length or its chunks; empty where the other side closed."""
    data = b""
    while True:
        head, end, body = data.partition(b"\r\n\r\n")
        if end:
            lower = head.lower()
            if b"transfer-encoding: chunked" in lower:
                if body.endswith(b"0\r\n\r\n"):
                    return data
            elif b"content-length: " in lower:
                length = int(lower.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                if len(body) >= length:
                    return data
            else:
                return data
        try:
            part = connection.recv(2**16)
        except OSError:
            return b""
        if not part:
            return b""
        data += part
