"""Langfuse: a data set, a trace for each result that belongs to an experiment on it, and the result's scores
(https://langfuse.com/docs/evaluation/experiments/data-model)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

from gateway.lab.evaluate.export.experiment import Experiment, Row, expected, inputs, told
from gateway.lab.evaluate.export.receiver import Receiver
from gateway.observe.telemetry.otlp_json import pairs, spans
from gateway.spans import Attributes, ids_of

AT_ONCE = 50
"""Of spans, and of scores: a request of the latter may have 1 MB."""
_NAMESPACE = uuid.UUID("0b6a2c7e-1f0d-5e83-8f0b-6a7d0a3b9c21")
_OLDER = (400, 404, 405, 410, 422)
"""Answers of a release that has no such request, or not any more."""


def push(tool: Receiver, found: Sequence[Experiment]) -> None:
    """Written again, the same items, traces and scores are there: their ids are made of the run's."""
    first = found[0]
    data_set = tool.ask("POST", "/api/public/v2/datasets", {"name": first.data_set})
    for row in first.rows:
        tool.ask("POST", "/api/public/dataset-items", item_of(first, row))
    projects = tool.ask("GET", "/api/public/projects").get("data") or [{}]
    for experiment in found:
        _push_results(tool, experiment, str(data_set["id"]), str(projects[0].get("id", "")))


def item_of(experiment: Experiment, row: Row) -> dict[str, Any]:
    return {
        "datasetName": experiment.data_set,
        "id": _item_id(experiment, row),
        "input": inputs(row.case),
        "expectedOutput": expected(row.case),
        "metadata": told(row.case),
    }


def _push_results(tool: Receiver, experiment: Experiment, data_set: str, project: str) -> None:
    number = experiment_id(project, data_set, experiment.name)
    for rows in _batched(experiment.rows):
        body = spans([span(experiment, row, number, data_set) for row in rows], {"service.name": "tollgate"})
        newest = {"x-langfuse-ingestion-version": "4"}
        tool.ask("POST", "/api/public/otel/v1/traces", body, headers=newest)
        _link(tool, experiment, rows)
        scores = [score for row in rows for score in scores_of(experiment, row)]
        if tool.ask("POST", "/api/public/scores", scores, unless=_OLDER) is None:
            for score in scores:
                tool.ask("POST", "/api/public/scores", score)


def _link(tool: Receiver, experiment: Experiment, rows: Sequence[Row]) -> None:
    """To the data set's items, for releases that do not find that in the spans."""
    for row in rows:
        body = {
            "runName": experiment.name,
            "datasetItemId": _item_id(experiment, row),
            "traceId": ids_of(experiment.id_of(row))[0],
        }
        if tool.ask("POST", "/api/public/dataset-run-items", body, unless=_OLDER) is None:
            return


def experiment_id(project: str, data_set: str, name: str) -> str:
    """As Langfuse itself makes it of a run's name."""
    told = ["langfuse-experiment-v1", project, data_set, name]
    text = json.dumps(told, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()[:16]


def span(experiment: Experiment, row: Row, number: str, data_set: str) -> dict[str, Any]:
    answer = row.answer
    trace_id, span_id = ids_of(experiment.id_of(row))
    usage = {"input": answer.prompt_tokens, "output": answer.completion_tokens}
    attributes: Attributes = {
        "langfuse.environment": "sdk-experiment",
        "langfuse.observation.type": "generation",
        "langfuse.observation.model.name": experiment.model,
        "langfuse.observation.input": _json(inputs(row.case)),
        "langfuse.observation.output": _json(row.output),
        "langfuse.observation.usage_details": _json(usage),
        "langfuse.observation.metadata": _json({"request_id": answer.request_id}),
        "langfuse.experiment.id": number,
        "langfuse.experiment.name": experiment.name,
        "langfuse.experiment.metadata": _json({"model": experiment.model, "run": experiment.run}),
        "langfuse.experiment.dataset.id": data_set,
        "langfuse.experiment.item.id": _item_id(experiment, row),
        "langfuse.experiment.item.expected_output": _json(expected(row.case)),
        "langfuse.experiment.item.metadata": _json(dict(told(row.case))),
        "langfuse.experiment.item.root_observation_id": span_id,
    }
    if answer.cost is not None:
        attributes["langfuse.observation.cost_details"] = _json({"total": answer.cost})
    if answer.error:
        attributes["langfuse.observation.level"] = "ERROR"
        attributes["langfuse.observation.status_message"] = answer.error
    ended = int(experiment.ended * 1e9)
    return {
        "traceId": trace_id,
        "spanId": span_id,
        "name": f"evaluate {experiment.data_set}",
        "kind": 1,  # internal
        "startTimeUnixNano": str(ended - int((answer.seconds or 0.0) * 1e9)),
        "endTimeUnixNano": str(ended),
        "attributes": pairs(attributes),
        "flags": 1,
    }


def scores_of(experiment: Experiment, row: Row) -> Iterator[dict[str, Any]]:
    trace_id, span_id = ids_of(experiment.id_of(row))
    for name, value in row.scores.items():
        yield {
            "id": f"{span_id}-{name}",
            "traceId": trace_id,
            "observationId": span_id,
            "name": name,
            "value": value,
            "dataType": "BOOLEAN" if name == "passed" else "NUMERIC",
            **({"comment": row.why} if row.why else {}),
        }


def _item_id(experiment: Experiment, row: Row) -> str:
    """Ids are unique among all data sets of a project."""
    return str(uuid.uuid5(_NAMESPACE, f"{experiment.data_set} {row.case.id}"))


def _batched(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    return (rows[start : start + AT_ONCE] for start in range(0, len(rows), AT_ONCE))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
