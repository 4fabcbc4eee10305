"""OpenTelemetry: an event ``gen_ai.evaluation.result`` for each result, on its request's trace where there is one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gateway.lab.evaluate.export.experiment import Experiment, Row
from gateway.lab.evaluate.export.receiver import Receiver
from gateway.observe.telemetry.otlp_json import log_record, logs
from gateway.observe.telemetry.score import EVENT
from gateway.spans import Attributes, ids_of

AT_ONCE = 200
NAME = "tollgate.evaluate"
"""The evaluation's."""


def push(tool: Receiver, found: Sequence[Experiment]) -> None:
    for body in _bodies(found):
        tool.ask("POST", "/v1/logs", body)


def write(path: Path, found: Sequence[Experiment]) -> None:
    """Lines of OTLP in JSON, as a collector's ``otlpjsonfile`` receiver reads them."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(body, ensure_ascii=False) + "\n" for body in _bodies(found))


def _bodies(found: Sequence[Experiment]) -> list[dict[str, Any]]:
    records = [event(experiment, row) for experiment in found for row in experiment.rows]
    resource = {"service.name": "tollgate"}
    return [logs(records[at : at + AT_ONCE], resource) for at in range(0, len(records), AT_ONCE)]


def event(experiment: Experiment, row: Row) -> dict[str, Any]:
    answer, verdict = row.answer, row.verdict
    attributes: Attributes = {
        "gen_ai.evaluation.name": NAME,
        "gen_ai.request.model": experiment.model,
        "tollgate.request_id": answer.request_id,
        "tollgate.evaluation.set": experiment.data_set,
        "tollgate.evaluation.run": experiment.run,
        "tollgate.evaluation.case": row.case.id,
    }
    if row.case.task:
        attributes["tollgate.evaluation.task"] = row.case.task
    if verdict is not None:
        attributes["gen_ai.evaluation.score.value"] = float(verdict.score)
        attributes["gen_ai.evaluation.score.label"] = "pass" if verdict.passed else "fail"
    if row.why:
        attributes["gen_ai.evaluation.explanation"] = row.why
    if answer.error:
        attributes["error.type"] = answer.error.partition(":")[0]
    span_id = ids_of(answer.request_id)[1] if answer.trace_id else ""
    return log_record(EVENT, int(experiment.ended * 1e9), answer.trace_id, span_id, attributes)
