"""``pip install . && tollgate serve``: an empty folder, no extras, ports that others have."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.cli.init import BUILTIN, folder
from gateway.policy.loader import load_policy
from gateway.process.listener import listen
from tests.minimal_environment import ROOT, minimal_environment, minimal_variables

COMMAND = ("-m", "gateway", "serve", "--port", "0")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return minimal_environment(tmp_path_factory.mktemp("bare") / "venv")


@contextmanager
def serving(python: Path | str, cwd: Path, **env: str) -> Iterator[list[str]]:
    """What it says up to the end of its banner; it serves meanwhile."""
    with subprocess.Popen(
        [str(python), *COMMAND],
        cwd=cwd,
        env=minimal_variables(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line.rstrip())
            if "print(reply" in line:
                break
        try:
            yield lines
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.read()
            assert process.wait(300) == 0


def fetching(python: Path, extra: str) -> str:
    """For an environment without pip, from this source."""
    return shlex.join(("pip", "--python", str(python), "install", "-e", f"{ROOT}[{extra}]"))


def test_without_the_engine_the_gateway_serves_and_says_how_to_get_it(bare: Path, tmp_path: Path) -> None:
    with serving(bare, tmp_path) as said:
        shown = "\n".join(said)
        assert "Traceback" not in shown
        assert sum("serving the built-in policy" in line for line in said) == 1
        assert (
            f"Disabled  bundled: the engine is not installed; get it with: {fetching(bare, 'engine')}"
            in shown
        )
        url, key = (
            re.findall(r"(?:runs|is ready) at (http://[^ ,]+)", shown)[0],
            re.findall(r"Key +(tg-\S+)", shown)[0],
        )
        with urllib.request.urlopen(f"{url}/healthz") as answer:
            assert answer.status == 200
        body = json.dumps(
            {"model": "tollgate-demo", "messages": [{"role": "user", "content": "Hi"}]}
        ).encode()
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(f"{url}/v1/chat/completions", body, headers))
        with refused.value as error:
            assert error.code in (404, 503) and "error" in json.load(error)


def test_the_engine_without_its_packages_is_one_line(bare: Path, tmp_path: Path) -> None:
    command = [str(bare), "-m", "engine", "serve", "--model", "demo", "--port", "0"]
    done = subprocess.run(
        command, cwd=tmp_path, env=minimal_variables(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: No module named") and line.endswith(fetching(bare, "engine"))


def test_guards_without_their_packages_are_one_line(bare: Path, tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "gateway.yaml").write_text(
        """\
version: 1
backends: {scripted: {kind: fake, script: [{reply: Hello}]}}
models: {m: {targets: [{backend: scripted, model: m}]}}
guards:
  toxicity: {on: [output], on_error: allow}
  pii: {on: [input], action: mask, on_error: allow}
caches: {semantic: {mode: shadow}}
"""
    )
    command = [str(bare), *COMMAND]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=minimal_variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        said: list[str] = []
        for line in process.stdout:
            said.append(line)
            if any("is ready at" in one for one in said) and any("not installed" in one for one in said):
                break
        process.send_signal(signal.SIGTERM)
        said += process.stdout.read().splitlines()
        assert process.wait(300) == 0
    (told,) = (line for line in said if "not installed" in line)
    assert "torch" in told and "faiss" in told and fetching(bare, "guards") in told
    assert not any("Traceback" in line for line in said)


def test_a_busy_engine_port_names_the_way_out_and_nothing_is_started(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0)[0] as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, *COMMAND],
            cwd=tmp_path,
            env=minimal_variables(ENGINE_URL=f"http://127.0.0.1:{port}", PYTHONPATH=str(ROOT)),
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 1 and done.stdout == ""
    said = done.stderr.splitlines()[-1]
    assert said.startswith(
        f"tollgate: port {port} on 127.0.0.1, for the engine of backend 'bundled', is in use"
    )
    assert f"ENGINE_URL=http://127.0.0.1:{port + 1}" in said and "ENGINE_LAUNCH=false" in said
    assert "Traceback" not in done.stderr


class TestInit:
    def test_it_writes_a_policy_that_is_good_and_commented(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(["init"]) == 0
        assert "tollgate serve" in capsys.readouterr().out
        written = tmp_path / "policies" / "gateway.yaml"
        assert not written.is_symlink() and written.read_text().startswith("# ")
        assert load_policy(written.parent, {}).fingerprint == load_policy(BUILTIN, {}).fingerprint
        assert main(["check"]) == 0

    def test_it_takes_another_folder(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["init", str(tmp_path / "a" / "b")]) == 0
        assert (tmp_path / "a" / "b" / "gateway.yaml").exists()
        assert f"tollgate serve --policies {tmp_path / 'a' / 'b'}" in capsys.readouterr().out

    @pytest.mark.parametrize("name", ["gateway.yaml", "teams.yml"])
    def test_it_overwrites_nothing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
    ) -> None:
        (tmp_path / name).write_text("version: 1\n")
        assert main(["init", str(tmp_path)]) == 1
        assert (
            capsys.readouterr().err == f"tollgate: {tmp_path / name} is there already: nothing was written\n"
        )
        assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(name, "version: 1\n")]

    def test_where_it_cannot_write_it_says_so(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "file").touch()
        assert main(["init", str(tmp_path / "file")]) == 1
        assert capsys.readouterr().err.endswith("cannot be written: File exists\n")


def test_the_built_in_policy_is_served_only_where_there_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert folder(None, {}) == BUILTIN
    assert folder("mine", {}) == Path("mine")
    assert folder(None, {"TOLLGATE_POLICIES": "theirs"}) == Path("theirs")
    (tmp_path / "policies").mkdir()
    assert folder(None, {}) == Path("policies")


def test_an_engine_port_is_free_again_once_nobody_listens() -> None:
    from gateway.backends.launcher import Launch

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    assert Launch((), "bundled", ("127.0.0.1", port)).obstacle() is None
    with listen("127.0.0.1", port)[0]:
        assert "ENGINE_URL" in (Launch((), "bundled", ("127.0.0.1", port)).obstacle() or "")
