"""A CSV file, which all three tools import: a line a case, with what each model made of it.

Texts are within JSON, so that no spreadsheet takes one for a formula and no tool finds another than was written.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.lab.evaluate.export.experiment import Experiment, expected, inputs
from gateway.text.csv_cell import csv_cell


def write(path: Path, found: Sequence[Experiment]) -> None:
    columns = ("id", "input", "expected_output", "task")
    names = [f"{one.model} {what}" for one in found for what in ("output", "passed", "score", "why")]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, *map(csv_cell, names)])
        for place, row in enumerate(found[0].rows):
            case = row.case
            results: list[Any] = []
            for experiment in found:
                one = experiment.rows[place]
                scores = one.scores
                output = {"error": one.answer.error} if one.answer.error else one.output
                results += [_json(output), scores.get("passed", ""), scores.get("score", "")]
                results.append(csv_cell(one.why))
            asked = [csv_cell(case.id), _json(inputs(case)), _json(expected(case)), csv_cell(case.task)]
            writer.writerow([*asked, *results])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
