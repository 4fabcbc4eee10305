"""A client that goes away takes its work with it, wherever that work is."""

from __future__ import annotations

import json
import socket

import pytest

from tests.engine.live import EngineServer, eventually

LONG = {"model": "long", "prompt": "zz", "max_tokens": 25_000, "temperature": 0}


def send(server: EngineServer, path: str = "/v1/completions", **body: object) -> socket.socket:
    """A request of which nothing has been read yet."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=300)
    head = f"POST {path} HTTP/1.1\r\nhost: engine\r\ncontent-length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


def counted(server: EngineServer, outcome: str) -> float:
    lines = server.http.get("/metrics").text.splitlines()
    name = f'tollgate_engine_requests_total{{path="/v1/completions",status="{outcome}"}} '
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


@pytest.mark.parametrize("stream", [True, False])
def test_a_running_request_is_aborted(server: EngineServer, stream: bool) -> None:
    before = counted(server, "hung_up")
    with send(server, **LONG, stream=stream) as connection:
        eventually(lambda: server.state()["running"] == 1)
        if stream:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
    eventually(lambda: server.state()["running"] == 0)
    assert server.state()["kv_cache"]["blocks_used"] == 0
    eventually(lambda: counted(server, "hung_up") == before + 1)


def test_all_choices_of_a_request_are_aborted(server: EngineServer) -> None:
    with send(server, **LONG, n=4):
        eventually(lambda: server.state()["running"] == 4)
    eventually(lambda: server.state()["running"] == 0)


def test_a_waiting_request_is_aborted_and_those_that_run_go_on(server: EngineServer) -> None:
    with send(server, **LONG, n=4):
        eventually(lambda: server.state()["running"] == 4)
        with send(server, **LONG):
            eventually(lambda: server.state()["waiting"] == 1)
        eventually(lambda: server.state()["waiting"] == 0)
        assert server.state()["running"] == 4
    eventually(lambda: server.state()["running"] == 0)


def test_a_full_queue_refuses_with_a_time_to_come_back_and_the_engine_stays_healthy(
    server: EngineServer,
) -> None:
    with send(server, **LONG, n=4), send(server, **LONG, n=2):
        eventually(lambda: server.state()["waiting"] == 2)
        answer = server.post("/v1/completions", model="long", prompt="zz")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "queue_full"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert server.http.get("/health").status_code == 200
        # A request that needs more places than there are takes none.
        assert server.post("/v1/completions", model="long", prompt="zz", n=2).status_code == 503
    eventually(lambda: server.state()["running"] == server.state()["waiting"] == 0)


def test_a_body_that_never_comes_harms_nobody(server: EngineServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=300) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-length: 100\r\n\r\n{")
    assert server.post("/v1/completions", model="long", prompt="zz", max_tokens=1).status_code == 200
