"""``tollgate drift``: what differs, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gateway.__main__ import main
from gateway.databases.opening import open_tables
from gateway.drift.table import DRIFT, HOUR, DriftTable, FoundDrift, HourRows, Place
from gateway.policy.schema import LedgerSettings
from tests.drifts import settled

PLACE = Place("m", "/v1/chat/completions")
NOW = 1_900_000_800
FACTS = {"test": "psi", "psi": 0.12, "z": 0.0, "name": "pt", "before": 0.05, "now": 0.15}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    policy = {
        "version": 1,
        "backends": {"a": {"kind": "fake", "script": [{"reply": "one"}]}},
        "models": {"m": {"targets": [{"backend": "a", "model": "x"}]}},
        "drift": {},
    }
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "gateway.yaml").write_text(yaml.safe_dump(policy))
    monkeypatch.setenv("TOLLGATE_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    return tmp_path


def run(folder: Path, *arguments: str) -> int:
    return main(["drift", "--policies", str(folder / "policies"), *arguments])


def a_drift(folder: Path) -> None:
    def judge(rows: HourRows) -> None:
        rows.keep(PLACE, {"languages": settled()})
        rows.begins(FoundDrift(*PLACE, "languages", NOW, None, FACTS))
        rows.begins(FoundDrift(*PLACE, "seconds", NOW - 9 * HOUR, NOW, FACTS))

    DriftTable(open_tables(DRIFT, LedgerSettings(), folder / "state")).judge(NOW, judge)


def test_a_table_of_what_lasts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_drift(folder)
    assert run(folder) == 0
    heading, line, summary = capsys.readouterr().out.splitlines()
    assert heading.split() == ["SINCE", "UNTIL", "MODEL", "ROUTE", "MEASURE", "WAS", "IS", "PSI", "BY"]
    assert line.split()[2:] == [
        "m",
        "/v1/chat/completions",
        "languages:",
        "pt",
        "0.05",
        "0.15",
        "0.12",
        "psi",
    ]
    assert summary.startswith("1 of 1 measures are known well enough")


def test_what_is_over_is_shown_where_it_is_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_drift(folder)
    assert run(folder, "--since", "36500d", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["measure"], one["until"]) for one in told["drifts"]] == [
        ("languages", None),
        ("seconds", NOW),
    ]
    assert (told["judged_until"], told["measures"], told["settled"]) == (NOW, 1, 1)


def test_before_anything_was_judged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder) == 0
    assert "Nothing drifts." in capsys.readouterr().out
    assert not (folder / "state" / "drift.sqlite").exists()


def test_without_the_key_it_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "policies" / "gateway.yaml"
    path.write_text(path.read_text().replace("drift: {}\n", ""))
    assert run(folder) == 0
    assert "no 'drift: {}'" in capsys.readouterr().out


def test_a_span_that_is_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--since", "soon") == 2
    assert "write a span" in capsys.readouterr().err


def test_a_database_that_is_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "state" / "drift.sqlite").write_text(
        "no database, and long enough not to be taken for one " * 20
    )
    assert run(folder) == 1
    assert capsys.readouterr().err.startswith("tollgate drift: ")
