"""A worker process with a socket handed to it, as the supervisor does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.identity.api_keys import hash_key
from gateway.process.listener import listen
from gateway.settings import Settings

POLICY = """\
version: 1
backends: {scripted: {kind: fake, script: [{reply: hi}]}}
models: {m: {targets: [{backend: scripted, model: m}]}}
"""
COMMAND = (sys.executable, "-m", "gateway.process.worker")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "gateway.yaml").write_text(POLICY)
    return Settings(state_dir=tmp_path / "state", policies=tmp_path, dev_key_sha256=hash_key("dev"))


@pytest.fixture
def url(settings: Settings) -> Iterator[str]:
    with listen("127.0.0.1", 0)[0] as listener:
        fd = listener.fileno()
        env = {**os.environ, **settings.to_env(), "TOLLGATE_SOCKET_FDS": str(fd)}
        with subprocess.Popen(COMMAND, env=env, pass_fds=[fd]) as process:
            yield "http://{}:{}".format(*listener.getsockname())
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 0


def test_it_serves_on_the_socket_that_it_was_given_and_leaves_in_good_order(url: str) -> None:
    ask = {"model": "m", "messages": [{"role": "user", "content": "?"}]}
    with httpx.Client(base_url=url, timeout=300, trust_env=False) as client:
        answer = client.post("/v1/chat/completions", json=ask, headers={"authorization": "Bearer dev"})
        assert answer.json()["choices"][0]["message"]["content"] == "hi"
        assert "server" not in answer.headers
        assert client.get("/v1/models").status_code == 401


def test_without_a_policy_it_does_not_start(settings: Settings) -> None:
    (settings.policies / "gateway.yaml").write_text("version: 2")
    with listen("127.0.0.1", 0)[0] as listener:
        fd = listener.fileno()
        env = {**os.environ, **settings.to_env(), "TOLLGATE_SOCKET_FDS": str(fd)}
        done = subprocess.run(
            COMMAND, env=env, pass_fds=[fd], capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 3 and "version: should be 1" in done.stderr


def test_alone_it_says_what_starts_it(settings: Settings) -> None:
    env = {**os.environ, **settings.to_env()}
    env.pop("TOLLGATE_SOCKET_FDS", None)
    done = subprocess.run(COMMAND, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2 and "Workers are started by 'tollgate serve'" in done.stderr
