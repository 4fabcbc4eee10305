from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from benchmarks.quantization import MODEL, TASKS, Known, table, texts, write_texts
from engine.__main__ import main
from engine.evaluation.measures import Figure, Measures
from engine.evaluation.report import Result
from scripts import models


def test_no_text_is_calibrated_and_examined_on() -> None:
    calibration, strata = texts()
    assert list(strata) == ["code", "prose", "German", "Chinese"]
    assert len(set(calibration)) == 100 and {len(exam) for exam in strata.values()} == {25}
    assert not set(calibration) & {text for exam in strata.values() for text in exam}


def test_each_stratum_has_questions_with_answers() -> None:
    rows = [json.loads(line) for line in TASKS.read_text(encoding="utf-8").splitlines()]
    assert all(row["text"] and row["answer"] for row in rows)
    counts = {
        stratum: sum(row["stratum"] == stratum for row in rows)
        for stratum in ("code", "prose", "German", "Chinese")
    }
    assert sum(counts.values()) == len(rows) and min(counts.values()) >= 12


def result(name: str, kl: float, beyond: list[str]) -> Result:
    def figure(value: float) -> Figure:
        return Figure(value, value / 2, value * 2)

    found = Measures(
        *(8, 100, figure(kl), figure(5), figure(1.1), figure(0.8), figure(0.4), 0.5, figure(0.6), 0.7),
        figure(0.1),
    )
    return Result(name, 900.0, {"all": found, "code": found, "German": found}, [kl], beyond)


def test_rows_are_kept_and_told_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "exam.jsonl").write_text("{}")
    known = Known(tmp_path)
    known.add(result("cache in int8", 0.02, []), 0)
    known.add(result("GPTQ, 4 bits, groups of 128", 0.1, ["German: KL may be 0.2", "all: too much"]), 2**20)
    again = Known(tmp_path).rows
    assert again == known.rows
    lines = list(table(again))
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|")
    assert lines[2].startswith("| GPTQ, 4 bits, groups of 128 | 1 | 0.100 (0.050–0.200) | 0.100 | 0.100 |")
    assert lines[2].endswith("| fails: German, all |") and lines[3].endswith("| passes |")
    (tmp_path / "exam.jsonl").write_text("{ }")
    assert Known(tmp_path).rows == {}, "of another examination"
    assert list(table({})) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_gate_on_real_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Qwen2.5-Coder-0.5B in 8 bits passes at the default limits, and with two of its heads' values exchanged fails."""
    found = models.find(MODEL)
    assert found is not None
    try:
        file = models.fetch(found, Path(os.environ.get("TOLLGATE_MODELS") or models.ROOT / "models"))
    except models.Unfetched as error:
        pytest.skip(f"{MODEL} cannot be had: {error}")
    write_texts(tmp_path, 4)
    assert main(["quantize", str(file), "--method", "plain", "--out", str(tmp_path / "plain")]) == 0
    exam = ["--reference", str(tmp_path / "plain"), "--text", str(tmp_path / "exam.jsonl")]
    fine = ["eval", "--model", str(tmp_path / "plain"), "--quantization", "int8"]
    assert main([*fine, *exam]) == 0, capsys.readouterr().err
    for path in (tmp_path / "plain").glob("*.safetensors"):
        tensors = load_file(path)
        if (name := "model.layers.12.self_attn.v_proj.weight") in tensors:
            tensors[name] = tensors[name].roll(64, 0)
            save_file(tensors, path, {"format": "pt"})
    assert main(["eval", "--model", str(tmp_path / "plain"), *exam[2:], *exam[:1], str(file)]) == 1
    assert " may be " in capsys.readouterr().err
