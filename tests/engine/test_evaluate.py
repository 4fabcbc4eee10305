from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.__main__ import main
from engine.evaluate import WAYS


def test_a_table_of_all_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--count", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "texts" in lines[0]
    assert [line.split(" | ")[0].strip("| ") for line in lines[4:]] == [way.name for way in WAYS]
    assert lines[4].endswith("100.00% |")


def test_one_way_on_a_text_as_json(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("the bones of a fallen tree " * 40)
    given = ["--text", str(tmp_path / "text"), "--quantization", "int8", "--kv-cache-dtype", "int8", "--json"]
    assert main(["eval", "--model", str(tiny_model), *given]) == 0
    full, way = json.loads(capsys.readouterr().out)
    assert full["name"] == "float32" and full["agreement"] == 1
    assert way["name"] == "int8 and KV cache int8" and way["weights_mib"] < full["weights_mib"]
    assert 0.8 < way["agreement"] <= 1 and way["perplexity"] == pytest.approx(full["perplexity"], rel=0.1)


def test_what_it_needs_is_said(tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--model", str(tiny_model)]) == 1
    assert "Give --text FILE" in capsys.readouterr().err
    assert main(["eval", "--text", str(tmp_path / "none")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert main(["eval", "--count", "0"]) == 1
    assert "--count must be at least 1" in capsys.readouterr().err
    (tmp_path / "empty").write_text("")
    assert main(["eval", "--text", str(tmp_path / "empty")]) == 1
    assert "fewer than two tokens" in capsys.readouterr().err
    assert main(["eval", "--count", "1", "--quantization", "int3"]) == 1
    assert "int3 is not supported" in capsys.readouterr().err
