"""Priority and deadline headers over real sockets, on an engine with one slot."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.engine.live import EngineServer, eventually

TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def narrow(long_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    log = tmp_path_factory.mktemp("logs") / "engine.log"
    options = ("--max-num-seqs", "1", "--max-waiting", "8", "--kv-cache-blocks", "1900")
    with EngineServer(long_model, *options, log=log) as server:
        yield server


@contextmanager
def occupied(server: EngineServer) -> Iterator[None]:
    """The one slot is taken, for seconds unless left."""
    body = {"model": "long", "prompt": "zz", "max_tokens": 20_000, "temperature": 0, "stream": True}
    with server.http.stream("POST", TEXT, json=body, headers={"x-tollgate-priority": "9"}) as answer:
        lines = answer.iter_lines()
        next(lines)
        yield
        lines.close()
    eventually(lambda: server.state()["running"] == 0)


def ask(server: EngineServer, *, tokens: int = 3, **headers: str) -> httpx.Response:
    body = {"model": "long", "prompt": "zz", "max_tokens": tokens, "temperature": 0}
    named = {f"x-tollgate-{name}": value for name, value in headers.items()}
    return server.http.post(TEXT, json=body, headers=named)


def test_who_waits_is_served_by_priority_and_counted_by_it(narrow: EngineServer) -> None:
    ended: list[str] = []
    with ThreadPoolExecutor(6) as threads:

        def wait(priority: str) -> Future[httpx.Response]:
            waiting = narrow.state()["waiting"]
            future = threads.submit(ask, narrow, tokens=20, priority=priority)
            future.add_done_callback(lambda _: ended.append(priority))
            eventually(lambda: narrow.state()["waiting"] == waiting + 1)
            return future

        with occupied(narrow):
            answers = [wait(priority) for priority in ("0", "high", "2", "-1", "1")]
            state = narrow.state()
            assert state["waiting_by_priority"] == {"2": 1, "1": 1, "0": 2, "-1": 1}
            assert list(state["waiting_by_priority"]) == ["2", "1", "0", "-1"]
            assert state["queue_depth"] == 5
        assert all(answer.result().status_code == 200 for answer in answers)
    assert ended == ["2", "1", "0", "high", "-1"]
    assert narrow.state()["waiting_by_priority"] == {}


def test_a_deadline_that_passes_in_the_queue_is_told_at_once(narrow: EngineServer) -> None:
    with occupied(narrow):
        began = time.monotonic()
        answer = ask(narrow, deadline="0.5")
        assert time.monotonic() - began > 0.4
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "deadline_unreachable"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert narrow.state()["waiting"] == 0
    assert ask(narrow, deadline="30").status_code == 200


def test_an_answer_that_runs_is_finished_though_late(narrow: EngineServer) -> None:
    """Twenty times as long as an answer usually is here, which nobody could know."""
    began = time.monotonic()
    answer = ask(narrow, tokens=3000, deadline="0.5")
    assert answer.status_code == 200
    assert time.monotonic() - began > 0.5
    assert answer.json()["usage"]["completion_tokens"] == 3000


def test_what_measured_speed_does_not_allow_is_refused_without_a_wait(narrow: EngineServer) -> None:
    """Answers of 100 tokens, known to take far longer than a hundredth of a second."""
    for _ in range(40):
        assert ask(narrow, tokens=100).status_code == 200
    answer = ask(narrow, tokens=100, deadline="0.01")
    assert answer.status_code == 503
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("deadline_unreachable", "service_unavailable_error")
    assert "expected to take" in error["message"]
    assert int(answer.headers["retry-after"]) >= 1
    assert ask(narrow, tokens=100, deadline="60").status_code == 200
    assert ask(narrow, deadline="-1").json()["error"]["code"] == "deadline_unreachable"


@pytest.mark.parametrize("value", ["soon", "", "nan", "inf", "2s"])
def test_what_cannot_be_read_is_ignored(narrow: EngineServer, value: str) -> None:
    assert ask(narrow, deadline=value, priority=value).status_code == 200
