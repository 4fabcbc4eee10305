from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.lab.traffic.reading import read_traffic

POLICY = """
version: 1
backends: {fake: {kind: fake, script: [{reply: Hi}]}}
models: {m: {targets: [{backend: fake, model: x}]}}
"""
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n2023-11-16 18:15:47.68,9,1\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "gateway.yaml").write_text(POLICY)
    (tmp_path / "trace.csv").write_text(TRACE)
    monkeypatch.setenv("TOLLGATE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_traffic_comes_in_is_listed_goes_out_and_is_deleted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", "list"]) == 0
    assert "Nothing is recorded" in capsys.readouterr().out
    assert main(["record", "import", "trace.csv", "--tenant", "trial", "--model", "m"]) == 0
    own = '{"at": 1700000000, "tenant": "acme", "model": "n"}'
    (folder / "own.jsonl").write_text(own)
    assert main(["record", "import", "own.jsonl"]) == 0
    capsys.readouterr()
    assert main(["record", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["tenant"], one["requests"]) for one in found] == [("acme", 1), ("trial", 2)]
    assert main(["record", "list"]) == 0
    assert "2023-11-16 18:15:46" in capsys.readouterr().out

    assert main(["record", "export", "--tenant", "trial", "--out", "out.jsonl.gz"]) == 0
    out = folder / "out.jsonl.gz"
    assert out.stat().st_mode & 0o077 == 0 and gzip.decompress(out.read_bytes())
    exported = list(read_traffic(out))
    assert [(one.tenant, one.model, one.prompt_tokens) for one in exported] == [
        ("trial", "m", 374),
        ("trial", "m", 9),
    ]

    assert main(["record", "delete", "--tenant", "trial", "--yes"]) == 0
    assert "2 recorded requests of 'trial' are deleted" in capsys.readouterr().err
    assert main(["record", "export", "--out", "rest.jsonl"]) == 0
    assert [one.tenant for one in read_traffic(folder / "rest.jsonl")] == ["acme"]


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["import"], 2, "name files, or --ledger"),
        (["import", "none.csv"], 2, "none.csv: No such file"),
        (["import", "policies/gateway.yaml"], 2, "traffic is CSV with"),
        (["export", "--since", "soon"], 2, "write one as 12h or 30d"),
        (["export", "--out", "nowhere/x.jsonl"], 1, "No such file"),
        (["delete", "--tenant", "acme"], 2, "add --yes"),
        (["list", "--policies", "none"], 2, "none"),
    ],
)
def test_what_cannot_be_done_is_said(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    status: int,
    told: str,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["record", *words]) == status
    assert told in capsys.readouterr().err


def test_what_was_recorded_with_another_secret_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", "import", "trace.csv"]) == 0
    (folder / "state" / "record.key").write_text("x" * 64)
    assert main(["record", "export"]) == 1
    assert "'record.key_file'" in capsys.readouterr().err
    (folder / "state" / "record.key").unlink()
    assert main(["record", "export"]) == 1
    assert "record.key" in capsys.readouterr().err and not (folder / "state" / "record.key").exists()
