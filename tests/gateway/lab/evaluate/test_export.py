"""A set and its results in the tools' own forms. ``benchmarks.conformance.receivers`` asks the tools themselves."""

from __future__ import annotations

import base64
import csv
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from gateway.__main__ import main
from gateway.lab.evaluate.answer import Answer
from gateway.lab.evaluate.case import Case
from gateway.lab.evaluate.checks import PASSED, failed
from gateway.lab.evaluate.errors import EvaluationError, SetError
from gateway.lab.evaluate.evaluation import Evaluation, Plan, Result
from gateway.lab.evaluate.export import otel
from gateway.lab.evaluate.export.experiment import Experiment, experiments
from gateway.lab.evaluate.export.exporting import Exporting, exporting
from gateway.spans import ids_of
from tests.json_server import Answer as Answering
from tests.json_server import Asked, JsonServer, json_server

RUN = "fb15d526" * 4
KEYS = {
    "LANGFUSE_PUBLIC_KEY": "pk",
    "LANGFUSE_SECRET_KEY": "sk",
    "LANGSMITH_API_KEY": "ls",
    "PHOENIX_API_KEY": "px",
    "OTEL_EXPORTER_OTLP_HEADERS": "X-Key=a%20b",
}


def found() -> list[Experiment]:
    cases = [
        Case("q0", {"messages": [{"role": "user", "content": "=1+1"}], "temperature": 0}, (), "sums", "2"),
        Case("q1", {"messages": [{"role": "user", "content": "Hi"}]}, (), ""),
    ]
    plan = Plan(cases, ["good", "bad"])
    traced = Answer("2", request_id="req_1", seconds=0.5, cost=0.25, trace_id="ab" * 16, prompt_tokens=3)
    good = [Result(cases[0], traced, PASSED), Result(cases[1], Answer("Hello"), None)]
    called = Answer("", (("add", '{"a": 1}'),))
    bad = [Result(cases[0], called, failed("no number")), Result(cases[1], Answer(error="400 no: no"), None)]
    evaluation = Evaluation(plan, {"good": good, "bad": bad}, {}, None)
    return experiments(evaluation, "golden", RUN)


def pushed(tool: Any, answer: Answering) -> JsonServer:
    with json_server(answer) as server:
        exporting(tool, server.url, Path("golden.jsonl"), KEYS).run(found())
    return server


def test_phoenix_has_a_data_set_and_an_experiment_a_model() -> None:
    def answer(asked: Asked) -> tuple[int, Any]:
        examples = [{"id": one, "node_id": f"n-{one}", "metadata": {"case": one}} for one in ("q0", "q1")]
        told = {"dataset_id": "d/1", "version_id": "v", "id": asked.path, "examples": examples}
        return 200, {"data": told}

    server = pushed("phoenix", answer)
    assert {one.headers["authorization"] for one in server.asked} == {"Bearer px"}
    (data_set,) = server.bodies("/v1/datasets/upload")
    assert (data_set["name"], data_set["example_ids"]) == ("golden", ["q0", "q1"])
    assert data_set["inputs"][0]["messages"][0]["content"] == "=1+1"
    assert data_set["outputs"] == [{"answer": "2"}, {}]
    names = [body["name"] for body in server.bodies("/v1/datasets/d%2F1/experiments")]
    assert names == ["good fb15d526", "bad fb15d526"]
    runs = [one.body for one in server.asked if one.path.endswith("/runs")]
    assert [run["dataset_example_id"] for run in runs] == ["n-q0", "n-q1", "n-q0", "n-q1"]
    assert (runs[0]["trace_id"], runs[3]["error"]) == ("ab" * 16, "400 no: no")
    assert runs[2]["output"]["tool_calls"][0]["name"] == "add"
    told = [(one["name"], one["result"]) for one in server.bodies("/v1/experiment_evaluations")]
    assert told == [
        ("passed", {"score": 1.0, "label": "pass"}),
        ("score", {"score": 1.0}),
        ("passed", {"score": 0.0, "label": "fail", "explanation": "no number"}),
        ("score", {"score": 0.0, "explanation": "no number"}),
    ]


def test_langsmith_has_experiments_of_one_data_set() -> None:
    server = pushed("langsmith", lambda asked: (200, {}))
    assert server.asked[0].headers["x-api-key"] == "ls"
    good, bad = server.bodies("/api/v1/datasets/upload-experiment")
    assert (good["dataset_name"], good["experiment_name"]) == ("golden", "good fb15d526")
    for one, other in zip(good["results"], bad["results"], strict=True):
        assert uuid.UUID(one["row_id"]) == uuid.UUID(other["row_id"])
        assert good["experiment_start_time"] <= one["start_time"] <= one["end_time"]
        assert one["end_time"] <= good["experiment_end_time"]
    assert bad["results"][0]["evaluation_scores"][0] == {
        "key": "passed",
        "score": 0.0,
        "comment": "no number",
    }
    assert bad["results"][1]["error"] == "400 no: no"


@pytest.mark.parametrize("is_older", [False, True])
def test_langfuse_has_items_traces_and_scores(is_older: bool) -> None:
    def answer(asked: Asked) -> tuple[int, Any]:
        if asked.path.endswith("/dataset-run-items"):
            return (200 if is_older else 404), {}
        if asked.path.endswith("/scores") and is_older and isinstance(asked.body, list):
            return 400, {"message": "Expected object"}
        return 200, {"id": "d1", "data": [{"id": "p1"}]}

    server = pushed("langfuse", answer)
    basic = base64.b64encode(b"pk:sk").decode()
    assert {one.headers["authorization"] for one in server.asked} == {f"Basic {basic}"}
    items = server.bodies("/api/public/dataset-items")
    assert [item["expectedOutput"] for item in items] == [{"answer": "2"}, {}]
    traces = server.bodies("/api/public/otel/v1/traces")
    first = traces[0]["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    assert (first["traceId"], first["spanId"]) == ids_of(f"{RUN} golden good q0")
    spans = [span for body in traces for span in body["resourceSpans"][0]["scopeSpans"][0]["spans"]]
    told = [attributes(span) for span in spans]
    assert [one["langfuse.experiment.item.id"] for one in told[:2]] == [item["id"] for item in items]
    assert len({one["langfuse.experiment.id"] for one in told}) == 2
    assert json.loads(told[0]["langfuse.observation.output"]) == {"answer": "2"}
    assert told[3]["langfuse.observation.level"] == "ERROR"
    for body in traces:
        ParseDict(in_base64(body), ExportTraceServiceRequest())
    sent = [body for body in server.bodies("/api/public/scores") if isinstance(body, list) is not is_older]
    scores = sent if is_older else [one for body in sent for one in body]
    assert [(one["name"], one["value"], one["dataType"]) for one in scores[:2]] == [
        ("passed", 1.0, "BOOLEAN"),
        ("score", 1.0, "NUMERIC"),
    ]
    assert len(server.bodies("/api/public/dataset-run-items")) == (4 if is_older else 2)


def attributes(span: Mapping[str, Any]) -> dict[str, Any]:
    return {pair["key"]: pair["value"].get("stringValue") for pair in span["attributes"]}


def in_base64(value: Any) -> Any:
    """Ids as protobuf's own JSON has them."""
    if isinstance(value, dict):
        return {
            name: base64.b64encode(bytes.fromhex(one)).decode()
            if name in ("traceId", "spanId")
            else in_base64(one)
            for name, one in value.items()
        }
    return [*map(in_base64, value)] if isinstance(value, list) else value


def test_events_are_on_the_traces_of_requests_that_were_traced(tmp_path: Path) -> None:
    path = tmp_path / "golden.otel.jsonl"
    otel.write(path, found())
    (line,) = path.read_text().splitlines()
    records = json.loads(line)["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    assert [record.get("traceId", "") for record in records] == ["ab" * 16, "", "", ""]
    assert records[0]["spanId"] == ids_of("req_1")[1]
    server = pushed("otel", lambda asked: (200, {}))
    assert len(server.bodies("/v1/logs")) == 1
    assert server.asked[0].headers["x-key"] == "a b"


def test_a_file_holds_what_was_written_and_no_formula(tmp_path: Path) -> None:
    to = exporting("langfuse", None, tmp_path / "golden.jsonl", {})
    assert to.is_file
    to.run(found())
    with (tmp_path / "golden.langfuse.csv").open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert json.loads(rows[0]["input"])["messages"][0]["content"] == "=1+1"
    assert json.loads(rows[0]["good output"]) == {"answer": "2"}
    assert (rows[0]["good passed"], rows[0]["bad passed"], rows[1]["good passed"]) == ("1.0", "0.0", "")
    assert not any(value[:1] in "=+-@" for row in rows for value in row.values() if value)


@pytest.mark.parametrize(
    ("tool", "given", "where"),
    [
        ("langfuse", "https://cloud.langfuse.com/api/public/otel/", "https://cloud.langfuse.com"),
        ("langsmith", "https://api.smith.langchain.com/api/v1", "https://api.smith.langchain.com"),
        ("phoenix", "http://localhost:6006", "http://localhost:6006"),
        ("otel", "http://localhost:4318/v1/logs", "http://localhost:4318"),
    ],
)
def test_where_a_tool_is(tool: Any, given: str, where: str) -> None:
    assert exporting(tool, given, Path("x"), KEYS).where == where


def test_what_is_wrong_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SetError, match="LANGSMITH_API_KEY"):
        exporting("langsmith", "https://h", Path("x"), {})
    with pytest.raises(EvaluationError, match="cannot be reached"):
        Exporting("otel", "http://127.0.0.1:9", {}).run(found())
    with (
        json_server(lambda asked: (401, {})) as server,
        pytest.raises(EvaluationError, match="refuses the key"),
    ):
        Exporting("phoenix", server.url, {}).run(found())
    with (
        json_server(lambda asked: (422, {"why": "too odd"})) as server,
        pytest.raises(EvaluationError, match=r"answered with 422: .*too odd"),
    ):
        Exporting("phoenix", server.url, {}).run(found())
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"prompt": "x", "checks": [{"exact": "y"}]}))
    assert main(["evaluate", str(path), "--models", "a", "--export-to", "http://h"]) == 2
    assert "by --export" in capsys.readouterr().err
