from __future__ import annotations

import json

import pytest

from benchmarks.quantization import DATA, TASKS, strata


@pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not there")
def test_no_text_is_calibrated_and_examined_on() -> None:
    texts = strata()
    assert list(texts) == ["code", "prose", "German", "Chinese"]
    for calibration, exam in texts.values():
        assert len(calibration) >= 16 and len(exam) >= 16
        assert not set(calibration) & set(exam)


def test_each_stratum_has_questions_with_answers() -> None:
    rows = [json.loads(line) for line in TASKS.read_text(encoding="utf-8").splitlines()]
    assert all(row["text"] and row["answer"] for row in rows)
    counts = {
        stratum: sum(row["stratum"] == stratum for row in rows)
        for stratum in ("code", "prose", "German", "Chinese")
    }
    assert sum(counts.values()) == len(rows) and min(counts.values()) >= 12
