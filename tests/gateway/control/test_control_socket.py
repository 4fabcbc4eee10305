"""``tollgate keys`` against a gateway that runs: what it says has happened, to every worker."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from gateway.__main__ import main
from gateway.control.client import SOCKET, identity, send_request
from tests.gateway.process.test_supervisor import ASK, Serve

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Deep down, where the address of a socket has no room."""
    folder = tmp_path / ("deep-" * 20) / "state"
    monkeypatch.setenv("TOLLGATE_STATE_DIR", str(folder))
    return folder


@pytest.fixture
def serve(tmp_path: Path, state: Path) -> Iterator[Serve]:
    serve = Serve(tmp_path, "--workers", "2")
    serve.ready()
    yield serve
    serve.close()


@pytest.fixture
def run(serve: Serve, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(action: str, *arguments: str) -> tuple[int, str, str]:
        code = main(["keys", action, "--policies", str(serve.policies), *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def statuses(serve: Serve, key: str) -> set[int]:
    """Of requests on many connections, so that both workers are met."""
    headers = {"authorization": f"Bearer {key}"}
    found = set()
    for _ in range(10):
        with httpx.Client(base_url=serve.ready(), headers=headers, timeout=300, trust_env=False) as client:
            found.add(client.post("/v1/chat/completions", json=ASK).status_code)
    return found


def test_what_it_says_is_so_by_then(serve: Serve, run: Run) -> None:
    code, out, err = run("create", "--id", "ci")
    key = out.strip()
    assert code == 0 and "The running gateway accepts it." in err
    assert statuses(serve, key) == {200}
    assert run("create", "--id", "other")[0] == 0
    code, out, _ = run("revoke", "ci")
    assert code == 0 and "The running gateway refuses it." in out
    assert statuses(serve, key) == {401}
    assert [line.split()[0] for line in run("list")[1].splitlines()] == ["ID", "other"]


def test_a_broken_folder_takes_revocations_and_says_what_it_does_not_take(serve: Serve, run: Run) -> None:
    key = run("create", "--id", "ci")[1].strip()
    (serve.policies / "broken.yaml").write_text("models: [")
    code, out, err = run("revoke", "ci")
    assert (code, statuses(serve, key)) == (0, {401})
    assert "refuses it" in out and "broken.yaml:1: not valid YAML" in err
    code, out, err = run("create", "--id", "new")
    assert (code, out) == (1, "") and "broken.yaml:1: not valid YAML" in err


def test_what_cannot_be_done_is_told_as_it_would_be_without_a_gateway(serve: Serve, run: Run) -> None:
    assert run("create", "--id", "ci")[0] == 0
    code, out, err = run("create", "--id", "ci")
    assert (code, out) == (1, "") and "there is a key with the id 'ci' already" in err
    code, _, err = run("revoke", "cj")
    assert code == 1 and "no key has the id 'cj'" in err


def test_its_door_is_its_owners_and_no_other_folders(serve: Serve, state: Path, tmp_path: Path) -> None:
    assert (state / SOCKET).stat().st_mode & 0o777 == 0o600
    here = identity(serve.policies)
    assert send_request(state, {"do": "revoke", "id": "nobody", "policies": here}) == {
        "error": "no key has the id 'nobody'"
    }
    assert send_request(state, {"do": "revoke", "id": "nobody", "policies": identity(tmp_path)}) is None
    assert "error" in (send_request(state, {"do": "dance", "policies": here}) or {})
    assert "error" in (send_request(state, {"do": "create", "entry": {"id": "x"}, "policies": here}) or {})
    assert send_request(tmp_path, {}) is None


def test_a_socket_that_was_left_behind_is_no_gateway(tmp_path: Path, state: Path) -> None:
    short = tmp_path / SOCKET
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(short))
    assert send_request(tmp_path, {}) is None
    state.mkdir(parents=True)
    short.rename(state / SOCKET)
    first = Serve(tmp_path)
    try:
        first.ready()
        assert (
            send_request(state, {"do": "revoke", "id": "x", "policies": identity(first.policies)}) is not None
        )
        second = Serve(tmp_path)
        try:
            second.ready()
            assert second.says("another gateway has this state folder")
        finally:
            second.close()
        assert (
            send_request(state, {"do": "revoke", "id": "x", "policies": identity(first.policies)}) is not None
        )
    finally:
        first.close()
