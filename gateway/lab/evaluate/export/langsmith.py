"""LangSmith: an experiment that was run elsewhere, with its data set, in one request
(https://docs.langchain.com/langsmith/upload-existing-experiments)."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from gateway.lab.evaluate.export.experiment import Experiment, Row, expected, inputs, told
from gateway.lab.evaluate.export.receiver import Receiver

_NAMESPACE = uuid.UUID("b3c1d9a2-8f35-5d0e-9c55-3a1c2f6f4a10")


def push(tool: Receiver, found: Sequence[Experiment]) -> None:
    for experiment in found:
        tool.ask("POST", "/api/v1/datasets/upload-experiment", body_of(experiment))


def body_of(experiment: Experiment) -> dict[str, Any]:
    longest = max((row.answer.seconds or 0.0 for row in experiment.rows), default=0.0)
    return {
        "experiment_name": experiment.name,
        "dataset_name": experiment.data_set,
        "experiment_start_time": _iso(experiment.ended - longest - 1.0),
        "experiment_end_time": _iso(experiment.ended),
        "experiment_metadata": {"model": experiment.model, "run": experiment.run},
        "results": [_result(experiment, row) for row in experiment.rows],
    }


def _result(experiment: Experiment, row: Row) -> dict[str, Any]:
    answer = row.answer
    found: dict[str, Any] = {
        # The case's: by it several models' results are side by side.
        "row_id": str(uuid.uuid5(_NAMESPACE, f"{experiment.data_set} {row.case.id}")),
        "inputs": inputs(row.case),
        "expected_outputs": expected(row.case),
        "actual_outputs": row.output,
        "evaluation_scores": [
            {"key": name, "score": round(value, 4), **({"comment": row.why} if row.why else {})}
            for name, value in row.scores.items()
        ],
        "start_time": _iso(experiment.ended - (answer.seconds or 0.0)),
        "end_time": _iso(experiment.ended),
        "run_name": experiment.model,
        "run_metadata": {**told(row.case), "request_id": answer.request_id},
    }
    if answer.error:
        found["error"] = answer.error
    return found


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()
