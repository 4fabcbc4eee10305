"""Phoenix: a data set, and an experiment on it for each model (https://arize.com/docs/phoenix/sdk-api-reference)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from gateway.lab.evaluate.export.experiment import Experiment, Row, expected, inputs, told
from gateway.lab.evaluate.export.receiver import Receiver


def push(tool: Receiver, found: Sequence[Experiment]) -> None:
    """A set of the same name becomes a new version of the data set; an experiment is made anew each time."""
    data_set = _data_set(tool, found[0])
    at = f"/v1/datasets/{quote(data_set['dataset_id'], safe='')}"
    version = data_set["version_id"]
    told_examples = tool.ask("GET", f"{at}/examples?version_id={quote(version, safe='')}")
    examples = {one["metadata"].get("case"): one for one in told_examples["data"]["examples"]}
    for experiment in found:
        body = {"name": experiment.name, "version_id": version, "metadata": {"model": experiment.model}}
        made = tool.ask("POST", f"{at}/experiments", body)["data"]
        for row in experiment.rows:
            _run(tool, str(made["id"]), experiment, row, examples[row.case.id])


def _data_set(tool: Receiver, experiment: Experiment) -> dict[str, Any]:
    cases = [row.case for row in experiment.rows]
    body = {
        "action": "update",
        "name": experiment.data_set,
        "inputs": [inputs(case) for case in cases],
        "outputs": [expected(case) for case in cases],
        "metadata": [told(case) for case in cases],
        "example_ids": [case.id for case in cases],
    }
    made: dict[str, Any] = tool.ask("POST", "/v1/datasets/upload?sync=true", body)["data"]
    return made


def _run(
    tool: Receiver, experiment_id: str, experiment: Experiment, row: Row, example: Mapping[str, Any]
) -> None:
    answer = row.answer
    began = experiment.ended - (answer.seconds or 0.0)
    times = {"start_time": _iso(began), "end_time": _iso(experiment.ended)}
    body = {
        "dataset_example_id": example.get("node_id") or example["id"],
        "output": row.output,
        "repetition_number": 1,
        **times,
        **({"error": answer.error} if answer.error else {}),
        **({"trace_id": answer.trace_id} if answer.trace_id else {}),
    }
    run = tool.ask("POST", f"/v1/experiments/{quote(experiment_id, safe='')}/runs", body)["data"]
    for name, value in row.scores.items():
        result = {"score": value, **({"label": "pass" if value else "fail"} if name == "passed" else {})}
        if row.why:
            result["explanation"] = row.why
        evaluation = {
            "experiment_run_id": run["id"],
            "name": name,
            "annotator_kind": "CODE",
            "result": result,
            **times,
        }
        tool.ask("POST", "/v1/experiment_evaluations", evaluation)


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()
