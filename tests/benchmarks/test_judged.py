"""False hits by a reader's verdicts, where labels are noisy."""

from __future__ import annotations

import json
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from benchmarks.judged import JUDGED, Judged, false_share, table

PAIRS = (("How do I cook rice?", "How can I cook rice?", 1), ("Is tea safe?", "Is tea unsafe?", 0))


def written(folder: Path, verdicts: tuple[str, ...]) -> Path:
    pairs = [json.dumps({"a": a, "b": b, "same": same}) + "\n" for a, b, same in PAIRS]
    (folder / "question_pairs.jsonl").write_text("".join(pairs))
    judged = [
        {"line": line, "crc32": crc32(f"{a}\n{b}".encode()), "serves": verdict, "reason": "-"}
        for line, ((a, b, _), verdict) in enumerate(zip(PAIRS, verdicts, strict=False), 1)
    ]
    path = folder / "judged.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in judged))
    return path


def test_verdicts_belong_to_the_pairs_of_their_lines(tmp_path: Path) -> None:
    judged = Judged.read(tmp_path, written(tmp_path, ("yes",)))
    assert judged.verdicts.tolist() == ["yes", ""]
    assert judged.same.tolist() == [True, False]
    assert judged.served.tolist() == [True, False]  # the rules tell safe from unsafe


def test_other_data_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, ("yes", "no"))
    data = tmp_path / "question_pairs.jsonl"
    data.write_text("".join(reversed(data.read_text().splitlines(keepends=True))))
    with pytest.raises(ValueError, match=r"line 1 of question_pairs\.jsonl is not the pair"):
        Judged.read(tmp_path, path)


def test_what_was_judged_stands_for_all_hits_of_its_label() -> None:
    same = np.array([False] * 10 + [True] * 90)
    verdicts = np.array(["no", "no", "partly", "yes", ""] * 2 + ["yes"] * 9 + ["no"] + [""] * 80)
    judged = Judged(same, np.ones(100, bool), verdicts)
    share, low, high = false_share(np.ones(100, bool), judged, ("no",))
    assert share == pytest.approx(0.1 * 4 / 8 + 0.9 * 1 / 10)
    assert low < share < high
    assert false_share(np.ones(100, bool), judged, ("no", "partly"))[0] == pytest.approx(0.1 * 6 / 8 + 0.09)
    assert "| 5.0% | 100 | 100.0% | 10.0% | 18 | 14.0%" in table(np.ones(100), judged, {"0.05": 0.5})


def test_each_verdict_has_its_reason_and_no_pair_two() -> None:
    rows = [json.loads(line) for line in JUDGED.read_text("utf-8").splitlines()]
    assert {row["serves"] for row in rows} == {"yes", "partly", "no"}
    assert len({row["line"] for row in rows}) == len(rows) >= 300
    assert all(row["reason"] for row in rows)
