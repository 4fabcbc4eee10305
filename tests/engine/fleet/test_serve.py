"""The real thing: processes, sockets, models in a budget of one and a half, and kills in the middle."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.__main__ import main
from engine.fleet import serve
from engine.processes import tree
from tests.engine.live import alive, eventually
from tests.engine.tiny import SHAPE, write_model

KV = "--kv-cache-memory=4MiB"


class Fleet:
    def __init__(self, *arguments: str, log: Path) -> None:
        self._log = log
        with log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "engine", "serve", "--port", "0", *arguments],
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        found = re.fullmatch(r"engine ready on (\S+)\n", line)
        assert found, log.read_text()
        self.http = httpx.Client(base_url=found[1], timeout=300, trust_env=False)

    def close(self) -> None:
        self.http.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        assert "Traceback" not in self._log.read_text()

    def ask(self, model: str, **more: Any) -> httpx.Response:
        body = {"model": model, "prompt": "bad fin", "max_tokens": 8, "temperature": 0, **more}
        return self.http.post("/v1/completions", json=body)

    def text(self, model: str) -> str:
        answer = self.ask(model)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["text"])

    def status(self, model: str) -> dict[str, Any]:
        return dict(self.http.get(f"/v1/models/{model}").json()["status"])

    def members(self) -> list[int]:
        """HTTP processes of models, and all others below them."""
        return tree(self.process.pid)[1:]

    def core(self) -> int:
        """The engine process of the only model that is loaded."""
        (found,) = (
            pid
            for pid in self.members()
            if "engine.process" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        )
        return found


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("two")
    write_model(folder / "a")
    write_model(folder / "b", {**SHAPE, "num_hidden_layers": 3})
    # By far most of what they take are their KV caches, whatever else on this machine shares pages with them: one fits,
    # two do not.
    fleet = Fleet(
        *("--model", str(folder / "a"), "--model", str(folder / "b")),
        *("--kv-cache-memory=1GiB", "--memory=1900MiB", "--sleep-level=0", "--max-load-wait=10m"),
        log=folder / "log",
    )
    yield fleet
    fleet.close()


@pytest.fixture
def one(tiny_model: Path, tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet("--model", str(tiny_model), "--min", "0", KV, "--max-load-wait=10m", log=tmp_path / "log")
    yield fleet
    fleet.close()


def test_one_model_comes_when_it_is_asked_again_after_its_death_and_leaves_with_the_fleet(one: Fleet) -> None:
    assert one.status("tiny")["value"] == "unloaded"
    assert one.members() == []
    first = one.ask("tiny")
    assert float(first.headers["x-tollgate-model-wait"]) > 0
    # The process in the middle of an answer dies: the answer is told so, the next request waits for the next process.
    body = {"model": "tiny", "prompt": "bad", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with one.http.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("data: ")
        os.kill(one.core(), signal.SIGKILL)
        last = [line for line in lines if line][-1]
    if last != "data: [DONE]":  # it may have been quicker
        error = json.loads(last.removeprefix("data: "))["error"]
        assert error["code"] == "engine_died" and error["incident"]
    assert one.ask("tiny").json()["choices"] == first.json()["choices"]
    assert (one.status("tiny")["deaths"], one.status("tiny")["loads"]) == (1, 2)
    members = one.members()
    assert len(members) >= 2
    one.process.kill()
    eventually(lambda: not any(map(alive, members)))


@pytest.mark.slow
def test_two_models_in_the_memory_of_one_and_a_half_swap_and_say_the_same(two: Fleet) -> None:
    before = two.http.get("/v1/engine/state").json()["swaps"]
    said = {name: two.text(name) for name in "ab"}
    assert said["a"] != said["b"]
    for name in "ab":
        assert two.text(name) == said[name]
    state = two.http.get("/v1/engine/state").json()
    assert state["swaps"] - before >= 3
    assert state["memory"]["taken"] <= state["memory"]["budget"]
    assert 0 < state["memory"]["own"] < 64 * 2**20
    figures = two.http.get("/metrics").text
    assert 'tollgate_engine_model_state{model="b",state="loaded"} 1.0' in figures
    assert "tollgate_engine_" in two.http.get("/metrics?model=b").text
    assert two.http.get("/metrics?model=a").text == ""


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["core", "http"])
def test_ten_requests_live_through_the_death_of_their_model(two: Fleet, victim: str) -> None:
    said, deaths = two.text("a"), two.status("a")["deaths"]
    http, core = two.members()[0], two.core()
    os.kill(core, signal.SIGSTOP)  # so that all are in flight when it dies
    answers: list[httpx.Response] = []
    askers = [threading.Thread(target=lambda: answers.append(two.ask("a"))) for _ in range(10)]
    for asker in askers:
        asker.start()
    eventually(lambda: two.status("a")["in_flight"] == 10)
    os.kill(core if victim == "core" else http, signal.SIGKILL)
    for asker in askers:
        asker.join(300)
    assert [answer.status_code for answer in answers] == [200] * 10
    assert {answer.json()["choices"][0]["text"] for answer in answers} == {said}
    assert two.status("a")["deaths"] == deaths + 1
    assert not alive(core)


@pytest.mark.slow
def test_a_waiting_stream_is_told(two: Fleet) -> None:
    two.text("a")
    with two.http.stream(
        "POST", "/v1/completions", json={"model": "b", "prompt": "x", "max_tokens": 2, "stream": True}
    ) as stream:
        lines = list(stream.iter_lines())
    assert lines[0].startswith(": model b: ") and "position 1" in lines[0]
    assert lines[-2] == "data: [DONE]"


def test_what_can_never_fit_is_told_by_a_check(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models.yaml").write_text(f"models: {{other: {{model: {tiny_model}, pinned: true}}}}")
    models = ("serve", "--model", str(tiny_model), "--models", str(tmp_path / "models.yaml"), "--check")
    command = [sys.executable, "-m", "engine", *models, "--memory=1GiB"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert f"The model '{tiny_model.name}' takes about " in done.stderr
    assert "beside other, which never give way: raise --memory" in done.stderr
    monkeypatch.setattr(serve, "predicted", lambda roster: {one.name: 800 * 2**20 for one in roster.models})
    assert main([*models, "--memory=3GiB"]) == 0
