"""A real file, written by one process or several."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.observe.json_lines import JsonLines

pytestmark = pytest.mark.anyio

WRITER = """
import sys
from pathlib import Path
from gateway.observe.json_lines import JsonLines
lines = JsonLines(Path(sys.argv[1]), 40_000)
for number in range(500):
    lines.add({"by": sys.argv[2], "number": number, "text": "x" * 20})
lines.flush()
"""


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_lines_are_written_in_order_for_their_owner_alone(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "state" / "findings.jsonl", 10_000)
    for number in range(20):
        assert lines.add({"number": number, "text": "a\nb\u2028\ud800"})
    await lines.aclose()
    assert [line["number"] for line in read(lines.path)] == list(range(20))
    assert lines.path.stat().st_mode & 0o077 == 0
    assert not lines.add({"too": "late"}) and lines.lost == 1


def test_the_file_and_the_one_before_it_stay_within_their_bound(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "it", 1000)
    for number in range(100):
        lines.add({"number": number, "text": "x" * 50})
    lines.flush()
    assert {path.name for path in tmp_path.iterdir()} == {"it", "it.1"}
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000
    kept = [line["number"] for line in read(tmp_path / "it.1") + read(tmp_path / "it")]
    assert kept == list(range(100 - len(kept), 100))


def test_processes_share_a_file_without_mixing_lines_up(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "it"), name]) for name in ("a", "b")
    ]
    assert [writer.wait(300) for writer in writers] == [0, 0]
    kept = read(tmp_path / "it.1") + read(tmp_path / "it")
    for name in ("a", "b"):
        mine = [line["number"] for line in kept if line["by"] == name]
        assert mine == sorted(mine)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 40_000
    assert len(kept) > 300


def test_a_disk_that_fails_loses_lines_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    lines = JsonLines(tmp_path / "file" / "it", 1000)
    lines.add({"a": 1})
    lines.flush()
    assert lines.lost == 1
    assert "cannot be written" in caplog.text
