"""Clients that stop reading their answers, over real sockets."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.live import EngineServer, eventually

STREAM = {"model": "long", "prompt": "zz", "max_tokens": 14_000, "temperature": 0, "stream": True, "n": 2}
SHORT = {"model": "long", "prompt": "zz", "max_tokens": 3, "temperature": 0}


@pytest.fixture(scope="module")
def narrow(long_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    log = tmp_path_factory.mktemp("logs") / "engine.log"
    options = ("--max-num-seqs", "2", "--kv-cache-blocks", "2000", "--write-timeout", "2")
    with EngineServer(long_model, *options, log=log) as server:
        yield server


def ask(server: EngineServer, **changes: object) -> socket.socket:
    """A stream of which nothing is read yet, with little room for it on the way."""
    body = json.dumps(STREAM | changes).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(300)
    connection.connect(("127.0.0.1", server.port))
    head = f"POST /v1/completions HTTP/1.1\r\nhost: engine\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    return connection


def test_who_takes_nothing_gives_up_its_slots_and_is_let_go(narrow: EngineServer) -> None:
    with ask(narrow):
        # It would take all slots until its end; others are served all the same.
        assert narrow.post("/v1/completions", **SHORT).status_code == 200
        eventually(lambda: "disconnecting it" in narrow.log)
        eventually(lambda: narrow.state()["running"] == narrow.state()["parked"] == 0)
        assert narrow.state()["kv_cache"]["blocks_used"] == 0


def test_who_reads_slowly_but_reads_gets_all_of_it(narrow: EngineServer) -> None:
    """With pauses: often behind, never too slow."""
    before = narrow.log.count("disconnecting it")
    with ask(narrow, max_tokens=4000, n=1) as connection:
        got = b""
        while not got.endswith(b"0\r\n\r\n"):
            part = connection.recv(2**16)
            assert part, "the connection was closed"
            got = got[-10:] + part
            time.sleep(0.0005)
    assert narrow.log.count("disconnecting it") == before
