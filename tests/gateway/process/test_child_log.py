"""One log of all processes: by hand, and of a gateway with a sidecar and an engine from its start to its end."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import httpx
import pytest

from gateway.children.watchdog import DUMP_STACK
from gateway.process.child_log import ChildLog

LINE = re.compile(
    r"(?:(?:gateway \d|engine|sidecar) \| )?"
    r"(?:\d\d:\d\d:\d\d (?:DEBUG  |INFO   |WARNING|ERROR  |CRITICAL) [\w.]+: .|    )"
)
TRACEBACK = ["Traceback (most recent call last):", '  File "x.py", line 1', "    code", "ValueError: x"]


def lines(form: Literal["text", "json"], *written: str) -> list[str]:
    stream = io.StringIO()
    log = ChildLog(form, stream)
    for line in written:
        log.write("engine", line)
    return stream.getvalue().splitlines()


def test_a_childs_records_pass_as_they_are() -> None:
    record = ("09:10:11 WARNING engine.server: a", "    second line")
    assert lines("text", *record) == [f"engine | {line}" for line in record]
    [told] = lines("json", '{"time": "t", "level": "error", "logger": "l", "message": "m", "more": 1}')
    assert json.loads(told)["level"] == "error"


def test_what_it_does_not_log_itself_becomes_records() -> None:
    for line in lines("text", *TRACEBACK, "09:10 ready", "\x1b[31mred"):
        assert re.match(r"engine \| \d\d:\d\d:\d\d INFO    output: ", line), line
        assert line.isprintable()
    for line, told in zip(TRACEBACK, lines("json", *TRACEBACK), strict=True):
        record = json.loads(told)
        assert (record["logger"], record["level"], record["message"]) == ("engine", "info", line)
    [told] = lines("json", '{"progress": 1}')
    assert json.loads(told)["message"] == '{"progress": 1}'


POLICY = """\
version: 1
backends:
  bundled: {kind: engine, launch: true, base_url: "http://127.0.0.1:%d", model: demo}
models:
  one: {targets: [{backend: bundled, model: demo}]}
guards: {injection: {action: flag}}
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_all_processes_write_one_format_from_start_to_end(tmp_path: Path, form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        port, engine = (sock.getsockname()[1] for sock in (one, other))
    file, log = tmp_path / "policies" / "gateway.yaml", tmp_path / "log"
    file.parent.mkdir()
    file.write_text(POLICY % engine)
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
    env |= {"TOLLGATE_LOG_FORMAT": form, "TOLLGATE_DEV_KEY": "dev-key", "TOLLGATE_SHUTDOWN_DELAY": "0"}
    command = (sys.executable, "-m", "gateway", "serve", "--port", str(port), "--workers", "2")

    def until(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline and process.poll() is None, log.read_text()
            time.sleep(0.05)

    def ask(path: str, model: str = "one") -> int:
        headers = {"authorization": "Bearer dev-key"}
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        try:
            return httpx.post(f"http://127.0.0.1:{port}{path}", json=body, headers=headers).status_code
        except httpx.TransportError:
            return 0

    def says(text: str) -> bool:
        return text in log.read_text()

    with log.open("w") as stderr:
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=stderr)
        try:
            until(lambda: ask("/v1/chat/completions") == 200 and says("ready: "))
            assert ask("/v1/chat/completions", "none") == 404
            for pid in _children(process.pid, "gateway.process.worker"):
                os.kill(pid, DUMP_STACK)  # in a form of Python's
            until(lambda: says("most recent call first"))
            file.write_text(POLICY % engine + "nonsense: 1\n")
            until(lambda: says("the policy is rejected"))
            file.write_text((POLICY % engine).replace("one:", "two:"))
            until(lambda: says("policy generation 2 is in force"))
            for kind in ("gateway.sidecar.worker", "engine"):
                os.kill(_children(process.pid, kind)[0], signal.SIGKILL)
            until(lambda: says("sidecar was killed") and says("engine was killed"))
            until(lambda: ask("/v1/chat/completions", "two") == 200)
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 0
        finally:
            process.kill()
            process.wait()
    for line in log.read_text().splitlines():
        if form == "json":
            assert json.loads(line).keys() >= {"time", "level", "logger", "message"}, line
        else:
            assert LINE.match(line), line
    # The engine's lines are its own records, not quoted in others.
    own = r'"logger": ?"engine.process"' if form == "json" else r"engine \| \S+ INFO    engine.process: "
    assert re.search(own, log.read_text())


def _children(parent: int, module: str) -> list[int]:
    children = [
        int(pid)
        for thread in Path(f"/proc/{parent}/task").iterdir()
        for pid in (thread / "children").read_text().split()
    ]
    return [pid for pid in children if f"\0{module}\0" in Path(f"/proc/{pid}/cmdline").read_text() + "\0"]


def test_why_it_does_not_start_is_in_the_log_of_machines(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text("version: 1\nbackends: {b: {kind: none}}\n")
    command = (sys.executable, "-m", "gateway", "serve", "--port", "0", "--policies", str(tmp_path))
    env = {**os.environ, "TOLLGATE_LOG_FORMAT": "json", "TOLLGATE_STATE_DIR": str(tmp_path / "state")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    [line] = done.stderr.splitlines()
    assert done.returncode == 1 and "the policy is rejected" in json.loads(line)["message"]
