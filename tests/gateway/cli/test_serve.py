"""``tollgate serve`` as it is run from a shell, up to pasting what its banner shows."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.cli import serve
from gateway.process.listener import listen

POLICY = """\
version: 1
backends:
  far: {kind: openai, base_url: "http://127.0.0.1:9", api_key: "${SOME_KEY}"}
  scripted: {kind: fake, script: [{reply: "Hello from the script."}]}
models:
  big: {targets: [{backend: far, model: m}]}
  small: {targets: [{backend: scripted, model: m}]}
"""
COMMAND = (sys.executable, "-m", "gateway", "serve", "--port", "0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "gateway.yaml").write_text(POLICY)
    return tmp_path


@pytest.fixture
def env() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOLLGATE_")}
    return {**kept, "no_proxy": "*", "PYTHONUNBUFFERED": "1", "TOLLGATE_SHUTDOWN_DELAY": "0"}


@pytest.fixture
def banner(folder: Path, env: dict[str, str]) -> Iterator[str]:
    """What is shown once it serves; it serves meanwhile."""
    with subprocess.Popen(COMMAND, cwd=folder, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if line == "EOF\n":
                break
        yield "".join(lines)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0


def test_what_the_banner_shows_works_when_pasted(banner: str, folder: Path, env: dict[str, str]) -> None:
    key = (folder / ".tollgate" / "dev-key").read_text().strip()
    assert f"Key       {key}" in banner and "Disabled  far: SOME_KEY is not set" in banner

    curl = re.search(r"^    curl .*?[^\\]\n", banner, re.MULTILINE | re.DOTALL)
    assert curl is not None
    answer = subprocess.run(["sh", "-c", curl[0]], env=env, capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"] == "Hello from the script."

    script = re.search(r"^\S+ - <<'EOF'\n.*^EOF\n", banner, re.MULTILINE | re.DOTALL)
    assert script is not None and script[0].count("\n") == 7  # five lines of Python
    answer = subprocess.run(["sh", "-c", script[0]], env=env, capture_output=True, text=True, check=True)
    assert answer.stdout == "Hello from the script.\n"


def test_with_json_logs_every_line_is_an_object_and_no_key_is_shown(
    folder: Path, env: dict[str, str]
) -> None:
    env |= {"TOLLGATE_LOG_FORMAT": "json", "TOLLGATE_DEV_KEY": "tg-secret"}
    with subprocess.Popen(
        COMMAND, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        records = []
        for line in process.stdout:
            assert "tg-secret" not in line
            records.append(json.loads(line))
            if records[-1]["message"].startswith("ready at "):
                assert records[-1]["models"] == ["big", "small"]
                assert records[-1]["development_key"] == "TOLLGATE_DEV_KEY"
                process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 0
    assert any(record["logger"].startswith("gateway.") and record["level"] == "warning" for record in records)


def failing(folder: Path, env: dict[str, str], *options: str) -> tuple[int, str]:
    done = subprocess.run(
        [*COMMAND, *options], cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_port_in_use(folder: Path, env: dict[str, str]) -> None:
    with listen("127.0.0.1", 0)[0] as taken:
        port = taken.getsockname()[1]
        code, said = failing(folder, env, "--port", str(port))
    assert code == 1
    assert said.startswith(
        f"tollgate: port {port} on 127.0.0.1 is in use by another program. Stop that one, or"
    )
    assert f"--port {port + 1} " in said and f"make serve PORT={port + 1}" in said


def test_a_metrics_port_that_cannot_be_had(folder: Path, env: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, message = failing(folder, env, "--port", "0", "--metrics-port", str(port))
    assert code == 1 and message.startswith(
        f"tollgate: no port for metrics: port {port} on 127.0.0.1 is in use"
    )
    assert f"--metrics-port {port + 1}" in message
    code, message = failing(folder, env, "--port", "8765", "--metrics-port", "8765")
    assert code == 1 and "which is the gateway's: take another for --metrics-port" in message


def test_a_port_that_an_engine_is_to_have(folder: Path, env: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    engine = f'{{kind: engine, launch: true, model: demo, base_url: "http://127.0.0.1:{port}"}}'
    (folder / "policies" / "gateway.yaml").write_text(
        POLICY.replace("  scripted:", f"  mine: {engine}\n  scripted:")
    )
    for options in (("--port", str(port)), ("--metrics-port", str(port))):
        code, said = failing(folder, env, *options)
        assert code == 1 and "that of the engine of backend 'mine': take another by --port" in said
    with socket.create_server(("127.0.0.1", port)):
        code, said = failing(folder, env)
    assert code == 1 and f"port {port} on 127.0.0.1, for the engine of backend 'mine', is in use" in said


def test_a_policy_that_cannot_be_used(folder: Path, env: dict[str, str]) -> None:
    (folder / "policies" / "gateway.yaml").write_text(POLICY.replace("kind: fake", "kind: faek"))
    code, said = failing(folder, env)
    assert code == 1
    assert said.splitlines() == [
        "tollgate: the policy is rejected:",
        "policies/gateway.yaml:4: backends.scripted.kind: 'faek' is not a kind of backend; did you mean 'fake'?",
    ]


def test_options_and_variables_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--workers", "many"]) == 2
    said = capsys.readouterr().err
    assert said == "tollgate: --workers must be a whole number from 1 to 1024, or 'auto', not 'many'\n"
    monkeypatch.setenv("TOLLGATE_LOG_LEVEL", "loud")
    assert main(["serve"]) == 2
    assert capsys.readouterr().err.startswith("tollgate: TOLLGATE_LOG_LEVEL must be one of debug, info,")


def test_a_state_folder_that_cannot_be_one_is_refused(folder: Path, env: dict[str, str]) -> None:
    (folder / "taken").touch()
    for name in ("taken", "taken/below"):
        done = subprocess.run(
            COMMAND,
            cwd=folder,
            env=env | {"TOLLGATE_STATE_DIR": name},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 1
        assert f"the state folder '{name}' is a file" in done.stderr and "TOLLGATE_STATE_DIR" in done.stderr


def test_one_that_cannot_be_written_is_said_once_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(**_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path))

    monkeypatch.setattr(serve, "TemporaryFile", refused)  # root writes to any folder
    assert serve._no_state(tmp_path) is None
    assert "Read-only file system" in caplog.text and "TOLLGATE_STATE_DIR" in caplog.text


def test_what_was_said_and_still_holds_is_not_said_with_each_key(folder: Path, env: dict[str, str]) -> None:
    with subprocess.Popen(
        COMMAND, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        while process.stdout.readline() != "EOF\n":
            pass
        for name in ("one", "two"):
            create = (*COMMAND[:3], "keys", "create", "--id", name)
            subprocess.run(create, cwd=folder, env=env, check=True, capture_output=True, timeout=300)
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        assert process.wait(300) == 0
    assert said.count("backend 'far' is disabled") == 1
    assert said.count("is in force") == 2, said
