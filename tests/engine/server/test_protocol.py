"""Requests that offer another protocol, as clients of HTTP/2 make them, over a raw socket."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

import orjson
import pytest

from tests.engine.live import EngineServer

ROOT = Path(__file__).parents[3]
BODY = orjson.dumps({"model": "long", "prompt": "once", "max_tokens": 3, "temperature": 0})
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
HEAD = b"POST /v1/completions?x=1 HTTP/1.1\r\nHost: x\r\n" + OFFER
SIZED = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
GET = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


def answers(server: EngineServer, parts: list[bytes], count: int) -> list[tuple[int, bytes]]:
    """Status and body of each answer on one connection, which is sent ``parts`` in so many writes."""
    found = []
    with socket.create_connection(("127.0.0.1", server.port), timeout=300) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part)
        with connection.makefile("rb") as file:
            for _ in range(count):
                status = int(file.readline().split()[1])
                length = 0
                while line := file.readline().strip():
                    name, _, value = line.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                found.append((status, file.read(length)))
    return found


@pytest.mark.parametrize("request_", [SIZED, CHUNKED], ids=["sized", "chunked_prefill"])
@pytest.mark.parametrize("size", [None, 7], ids=["whole", "in pieces"])
def test_the_body_behind_an_offer_is_read(server: EngineServer, request_: bytes, size: int | None) -> None:
    step = size or len(request_)
    parts = [request_[i : i + step] for i in range(0, len(request_), step)]
    [(status, body)] = answers(server, parts, 1)
    plain = server.http.post("/v1/completions", content=BODY).json()
    assert status == 200
    assert orjson.loads(body)["choices"] == plain["choices"]


def test_connections_go_on_behind_an_offer(server: EngineServer) -> None:
    found = answers(server, [SIZED + GET + CHUNKED], 3)
    assert [status for status, _ in found] == [200, 200, 200]
    assert orjson.loads(found[0][1])["choices"] == orjson.loads(found[2][1])["choices"]
    assert orjson.loads(found[1][1])["object"] == "list"


def test_a_tunnel_is_refused(server: EngineServer) -> None:
    [(status, _)] = answers(server, [b"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n"], 1)
    assert status == 400


@pytest.mark.skipif(shutil.which("javac") is None, reason="there is no JDK on this machine")
def test_javas_own_client(server: EngineServer, tmp_path: Path) -> None:
    body = tmp_path / "body.json"
    body.write_bytes(BODY)
    program = ROOT / "tests" / "gateway" / "web" / "clients" / "Ask.java"
    command = [
        "java",
        "-XX:TieredStopAtLevel=1",
        str(program),
        f"{server.url}/v1/completions",
        "none",
        str(body),
    ]
    received = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    lines = received.strip().splitlines()
    assert len(lines) == 4
    assert all(line.startswith('HTTP_1_1 200 {"') for line in lines)
