"""Files of a gateway with two workers, before and after a restart."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.gateways import serving

KEY = {"authorization": "Bearer tg-files"}
POLICY: dict[str, Any] = {
    "version": 1,
    "backends": {"scripted": {"kind": "fake", "script": [{"reply": "Hello."}]}},
    "models": {"scripted": {"targets": [{"backend": "scripted", "model": "any"}]}},
    "keys": [{"id": "one", "sha256": sha256(b"tg-files").hexdigest(), "tenant": "acme"}],
}


def upload(url: str, content: Any) -> dict[str, Any]:
    """On a connection of its own, so that any worker may get it."""
    answer = httpx.post(
        f"{url}/v1/files",
        files={"file": ("x.jsonl", content)},
        data={"purpose": "user_data"},
        headers=KEY,
        verify=False,
        timeout=300,
    )
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def download(url: str, file: dict[str, Any]) -> bytes:
    answer = httpx.get(f"{url}/v1/files/{file['id']}/content", headers=KEY, timeout=300, verify=False)
    assert answer.status_code == 200, answer.text
    return answer.content


def listed(url: str) -> list[str]:
    answer = httpx.get(f"{url}/v1/files?order=asc", headers=KEY, timeout=300, verify=False)
    return [file["id"] for file in answer.json()["data"]]


@pytest.mark.slow
def test_two_workers_and_a_restart_have_the_same_files(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with serving(tmp_path / "one", POLICY, workers=2, TOLLGATE_STATE_DIR=str(state)) as url:
        files = [upload(url, b"%d" % number * 1000) for number in range(8)]
        for _ in range(4):
            assert listed(url) == [file["id"] for file in files]
        assert [download(url, file) for file in files] == [b"%d" % number * 1000 for number in range(8)]
        gone = files.pop(3)
        assert httpx.delete(f"{url}/v1/files/{gone['id']}", headers=KEY, verify=False).status_code == 200
        for _ in range(4):
            assert httpx.get(f"{url}/v1/files/{gone['id']}", headers=KEY, verify=False).status_code == 404
    with serving(tmp_path / "two", POLICY, TOLLGATE_STATE_DIR=str(state)) as url:
        assert listed(url) == [file["id"] for file in files]
        assert download(url, files[-1]) == b"7" * 1000
    for path in state.rglob("files*"):
        assert path.stat().st_mode & 0o077 == 0, f"{path} is for its owner alone"
