"""Life and death of the two processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import httpx

from tests.engine.live import EngineServer, alive, eventually
from tests.ports import free_port

LONG = {"model": "long", "prompt": "zz", "max_tokens": 25_000, "temperature": 0}


class Request(threading.Thread):
    """A request in the background."""

    def __init__(self, server: EngineServer, **body: object) -> None:
        super().__init__(daemon=True)
        self._url = f"{server.url}/v1/completions"
        self._body = body
        self.status = 0
        self.text = ""
        self.start()

    def run(self) -> None:
        # A test may end, and its server with it, while this one still reads.
        with (
            contextlib.suppress(httpx.RemoteProtocolError),
            httpx.stream("POST", self._url, json=self._body, timeout=300, trust_env=False) as answer,
        ):
            self.status = answer.status_code
            for text in answer.iter_text():
                self.text += text


def running(server: EngineServer, count: int) -> None:
    eventually(lambda: server.state()["running"] == count)


def test_when_the_loop_process_dies_everyone_is_told_and_the_server_leaves(
    long_model: Path, tmp_path: Path
) -> None:
    options = ("--max-num-seqs", "2", "--kv-cache-blocks", "4000")
    with EngineServer(long_model, *options, log=tmp_path / "log") as server:
        stream = Request(server, **LONG, stream=True)
        whole = Request(server, **LONG)
        running(server, 2)
        waiting = Request(server, **LONG, stream=True)
        eventually(lambda: server.state()["waiting"] == 1 and stream.text)
        os.kill(server.core_pid, signal.SIGKILL)
        assert server.process.wait(300) == 1
        for request in (stream, whole, waiting):
            request.join(300)
        for request in (whole, waiting):
            assert request.status == 503
            assert json.loads(request.text)["error"]["code"] == "engine_died"
        assert stream.status == 200
        last = stream.text.rstrip().rpartition("\n\n")[2]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_died"
        assert "Traceback" not in server.log


def test_when_the_http_process_dies_the_loop_process_leaves(long_model: Path, tmp_path: Path) -> None:
    with EngineServer(long_model, "--kv-cache-blocks", "4000", log=tmp_path / "log") as server:
        idle = server.core_pid
        server.process.kill()
        eventually(lambda: not alive(idle))
    with EngineServer(long_model, "--kv-cache-blocks", "4000", log=tmp_path / "log") as server:
        busy = server.core_pid
        connection = socket.create_connection(("127.0.0.1", server.port))
        data = json.dumps(LONG).encode()
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: e\r\ncontent-length: %d\r\n\r\n" % len(data)
        )
        connection.sendall(data)
        running(server, 1)
        server.process.kill()
        eventually(lambda: not alive(busy))
        connection.close()
        assert "Traceback" not in server.log


def test_sigterm_lets_what_runs_finish_and_takes_nothing_new(long_model: Path, tmp_path: Path) -> None:
    with EngineServer(long_model, "--kv-cache-blocks", "4000", log=tmp_path / "log") as server:
        requests = [Request(server, **{**LONG, "max_tokens": 300}, stream=stream) for stream in (True, False)]
        running(server, 2)
        loop = server.core_pid
        server.signal(signal.SIGTERM)
        eventually(lambda: refuses(server.port))
        assert server.process.wait(300) == 0
        for request in requests:
            request.join(300)
            assert request.status == 200
        assert requests[0].text.endswith("data: [DONE]\n\n")
        assert json.loads(requests[1].text)["usage"]["completion_tokens"] == 300
        assert not alive(loop)
        assert "Traceback" not in server.log


def test_a_drain_is_bounded_and_tells_those_it_drops(long_model: Path, tmp_path: Path) -> None:
    options = ("--kv-cache-blocks", "4000", "--drain-timeout", "0.3")
    with EngineServer(long_model, *options, log=tmp_path / "log") as server:
        stream, whole = Request(server, **LONG, stream=True), Request(server, **LONG)
        running(server, 2)
        eventually(lambda: stream.text)
        server.signal(signal.SIGTERM)
        assert server.process.wait(300) == 0
        stream.join(300)
        whole.join(300)
        assert '"code":"shutting_down"' in stream.text
        assert (whole.status, json.loads(whole.text)["error"]["code"]) == (503, "shutting_down")
        assert "Traceback" not in server.log


def test_ctrl_c_is_quiet_and_a_second_one_does_not_wait(long_model: Path, tmp_path: Path) -> None:
    with EngineServer(long_model, "--kv-cache-blocks", "4000", log=tmp_path / "log") as server:
        Request(server, **LONG, stream=True)
        running(server, 1)
        # A terminal sends it to both processes.
        for pid in (server.process.pid, server.core_pid):
            os.kill(pid, signal.SIGINT)
        eventually(lambda: "draining" in server.log)
        server.signal(signal.SIGINT)
        assert server.process.wait(300) == 0
        assert "Traceback" not in server.log


def test_ctrl_c_while_the_model_loads_is_quiet_too(long_model: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "engine", "serve", "--model", str(long_model), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    status = Path(f"/proc/{process.pid}/status")
    # Until it takes SIGTERM, the command itself is being read.
    eventually(lambda: int(re.search(r"SigCgt:\t(\w+)", status.read_text())[1], 16) >> 14 & 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0
    assert out == b""
    assert b"Traceback" not in err


def run(*options: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "engine", "serve", *options], capture_output=True, text=True, timeout=300
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_what_cannot_start_says_why_in_a_line(long_model: Path, tmp_path: Path) -> None:
    status, received = run("--model", str(tmp_path))
    assert status == 1
    assert "config.json does not exist" in received
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, received = run("--model", str(long_model), "--port", str(port))
        assert status == 1
        assert f"Cannot listen on 127.0.0.1:{port}" in received
    status, received = run("--model", str(long_model), "--port", "0", "--max-model-len", "40000")
    assert status == 1
    assert "30000 positions" in received.splitlines()[-1]


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=300).close()
    except ConnectionRefusedError:
        return True
    return False


def test_an_engine_process_that_stays_stuck_is_killed_and_every_request_fails(
    long_model: Path, tmp_path: Path
) -> None:
    options = ("--kv-cache-blocks", "4000", "--step-timeout", "1")
    with EngineServer(long_model, *options, log=tmp_path / "log") as server:
        stream, plain = Request(server, **LONG, stream=True), Request(server, **LONG)
        eventually(lambda: stream.text)
        os.kill(server.core_pid, signal.SIGSTOP)
        assert server.process.wait(300) == 1
        stream.join(300)
        plain.join(300)
        assert plain.status == 503
        assert '"engine_died"' in plain.text
        assert '"engine_died"' in stream.text
    assert "--step-timeout" in (tmp_path / "log").read_text()


def test_a_step_that_is_stuck_shows_within_five_seconds(long_model: Path, tmp_path: Path) -> None:
    with EngineServer(long_model, "--kv-cache-blocks", "4000", log=tmp_path / "log") as server:
        stream = Request(server, **LONG, stream=True)
        eventually(lambda: stream.text)
        assert server.http.get("/health").status_code == 200
        os.kill(server.core_pid, signal.SIGSTOP)
        eventually(lambda: server.http.get("/health").status_code == 503)
        answer = server.http.get("/health")
        assert answer.json()["error"]["code"] == "engine_stalled"
        os.kill(server.core_pid, signal.SIGCONT)
        eventually(lambda: server.http.get("/health").status_code == 200)


def runs_nothing(state: str) -> bool:
    """Who connects as a port is closed may be left without an answer."""
    try:
        return bool(httpx.get(state, timeout=300, trust_env=False).json()["running"] == 0)
    except httpx.TransportError:
        return False


def test_an_engine_on_standby_takes_over_the_port_of_the_one_that_serves(
    long_model: Path, tmp_path: Path
) -> None:
    port, standby = free_port(), free_port()
    small = ("--max-num-seqs", "2", "--kv-cache-blocks", "4000", "--port", str(port))
    with (
        EngineServer(long_model, *small, "--share-port", log=tmp_path / "one") as before,
        EngineServer(long_model, *small, "--standby-port", str(standby), log=tmp_path / "two") as after,
    ):
        assert (before.port, after.port) == (port, standby)
        assert after.http.get("/health").status_code == 200
        stream = Request(before, **LONG, stream=True)
        running(before, 1)
        after.process.send_signal(signal.SIGUSR1)
        eventually(lambda: refuses(standby))
        before.process.send_signal(signal.SIGTERM)
        eventually(lambda: "draining" in before.log)
        # It says so a moment before it closes its port. Then it is the other one's: the first has a request.
        eventually(lambda: runs_nothing(f"http://127.0.0.1:{port}/v1/engine/state"))
        os.kill(before.core_pid, signal.SIGKILL)
        stream.join(300)
        after.process.send_signal(signal.SIGTERM)
        assert after.process.wait(300) == 0
