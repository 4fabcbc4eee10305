"""Tests for ``tollgate caches days``."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path

import pytest

from gateway.cli import operate
from gateway.observe.cache_days import CacheDays
from gateway.types import Usage
from tests.fakes import a_bill, a_call


@pytest.fixture
def parser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    monkeypatch.setenv("TOLLGATE_STATE_DIR", str(tmp_path))
    parser = argparse.ArgumentParser()
    operate.add_parser(parser.add_subparsers())
    return parser


def run(parser: argparse.ArgumentParser, *arguments: str) -> int:
    parsed = parser.parse_args(["caches", "days", *arguments])
    return int(parsed.run(parsed))


def recorded(folder: Path) -> str:
    days = CacheDays(folder / "cache_days.sqlite")
    now = time.time()
    for hit in (True, False, False, False):
        call = a_call(model="m")
        call.receipt.created = now
        call.receipt.note("cache", semantic="hit" if hit else "doubt", would_serve=hit)
        days.record(call, a_bill(Usage(990, 10), 2_500_000_000))
    asyncio.run(days.aclose())
    return time.strftime("%Y-%m-%d", time.gmtime(now))


def test_a_table(parser: argparse.ArgumentParser, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    today = recorded(tmp_path)
    assert run(parser) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["DAY", "MODE", "LOOKUPS", "HITS", "SHARE", "TOKENS", "USD", "REFUSED", "FOR"]
    assert line.split() == [today, "shadow", "4", "1", "25.0%", "1,000", "2.5000", "doubt", "3"]


def test_json_by_model(
    parser: argparse.ArgumentParser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    today = recorded(tmp_path)
    assert run(parser, "--json", "--by", "model", "--since", "2d") == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "model": "m",
            "day": today,
            "mode": "shadow",
            "lookups": 4,
            "hits": 1,
            "hit_tokens": 1000,
            "refused": {"doubt": 3},
            "hit_usd": 2.5,
        }
    ]


def test_none_and_a_span_that_is_none(
    parser: argparse.ArgumentParser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(parser) == 0
    assert "was not asked in the last 30d" in capsys.readouterr().out
    assert run(parser, "--since", "soon") == 2
    assert "--since: write a span" in capsys.readouterr().err


def test_a_file_that_is_no_database(
    parser: argparse.ArgumentParser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache_days.sqlite").write_text("not a database, and longer than its header is: " + "x" * 100)
    assert run(parser) == 1
    assert "cache_days.sqlite: file is not a database" in capsys.readouterr().err
