"""Scores as their receivers get them, over real sockets."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from gateway.observe.telemetry import score as forms
from gateway.observe.telemetry.otlp_json import logs
from gateway.observe.telemetry.score import Score
from gateway.observe.telemetry.score_sender import ScoreSender
from gateway.policy import schema
from gateway.policy.schema.telemetry import Scores
from gateway.spans import ids_of
from tests.json_server import Answer, Asked, JsonServer, json_server

REQUEST = "req_1a2267261e455cdbdd94d111"
TRACE, SPAN = ids_of(REQUEST)
SCORE = Score(REQUEST, "user_feedback", 1.0, "good", "It is right.", "human", TRACE, SPAN, 1795941360.25)


def sent(answer: Answer, score: Score = SCORE, **scores: Any) -> tuple[JsonServer, ScoreSender]:
    with json_server(answer) as server:
        telemetry = {"endpoint": server.url + scores.pop("at", ""), "headers": {"x-key": "secret"}}
        config = schema.Telemetry.model_validate({**telemetry, "scores": scores})
        assert config.score_address == server.url
        sender = ScoreSender(config, server.url, pause=0.0, retries=(0.0, 0.0))
        sender.add(score)
        assert sender.flush(60)
        sender.close()
        return server, sender


def test_a_request_is_found_by_its_id_alone() -> None:
    assert (len(TRACE), len(SPAN)) == (32, 16)
    assert ids_of(REQUEST) == (TRACE, SPAN) != ids_of(REQUEST[:-1] + "2")


def test_an_event_is_a_log_record_of_otlp() -> None:
    """Protobuf's own reader takes each field, and knows no other."""
    server, _ = sent(lambda asked: (200, {}), receiver="otlp")
    (body,) = server.bodies("/v1/logs")
    assert server.asked[0].headers["x-key"] == "secret"
    (record,) = body["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    assert (record["traceId"], record["spanId"]) == (TRACE, SPAN)
    for name in ("traceId", "spanId"):  # hexadecimal in OTLP, base64 in protobuf's own JSON
        record[name] = base64.b64encode(bytes.fromhex(record[name])).decode()
    read = ParseDict(body, ExportLogsServiceRequest()).resource_logs[0]
    (event,) = read.scope_logs[0].log_records
    assert (event.trace_id.hex(), event.span_id.hex()) == (TRACE, SPAN)
    assert (event.event_name, round(event.time_unix_nano, -6)) == (forms.EVENT, 1795941360250000000)
    told = {pair.key: pair.value for pair in event.attributes}
    assert told["gen_ai.evaluation.name"].string_value == "user_feedback"
    assert told["gen_ai.evaluation.score.value"].double_value == 1.0
    assert told["gen_ai.evaluation.score.label"].string_value == "good"
    assert told["gen_ai.evaluation.explanation"].string_value == "It is right."
    assert {pair.key for pair in read.resource.attributes} == {"service.name", "service.version"}


def test_an_event_without_a_span_has_no_ids() -> None:
    nowhere = Score("", "x", None, "y", None, "code", "", "", 1.0)
    assert not {"traceId", "spanId"} & forms.event(nowhere).keys()
    json.dumps(logs([forms.event(nowhere)], {"a": 1, "b": True, "c": ("d",)}))


def test_phoenix_annotates_the_span() -> None:
    server, _ = sent(lambda asked: (200, {}), receiver="phoenix")
    (body,) = server.bodies("/v1/span_annotations")
    (one,) = body["data"]
    assert (one["span_id"], one["annotator_kind"]) == (SPAN, "HUMAN")
    assert one["result"] == {"score": 1.0, "label": "good", "explanation": "It is right."}


def test_langfuse_takes_a_list_or_else_one() -> None:
    server, _ = sent(lambda asked: (207, {"accepted": 1}), receiver="langfuse", at="/api/public/otel")
    ((one,),) = server.bodies("/api/public/scores")
    assert (one["traceId"], one["value"], one["dataType"]) == (TRACE, 1.0, "NUMERIC")
    assert one["timestamp"].startswith("2026-11-29T08:36:00"), (
        "the request's: by it another score replaces it"
    )

    def older(asked: Asked) -> tuple[int, Any]:
        return (400, {"message": "Expected object"}) if isinstance(asked.body, list) else (200, {"id": "x"})

    server, sender = sent(older, receiver="langfuse", at="/api/public/otel")
    assert [type(body) for body in server.bodies("/api/public/scores")] == [list, dict]
    assert sender.lost == 0


@pytest.mark.parametrize(
    ("value", "label", "kind"), [(None, "good", "CATEGORICAL"), (None, None, "TEXT"), (0.5, None, "NUMERIC")]
)
def test_langfuse_has_kinds(value: float | None, label: str | None, kind: str) -> None:
    told = forms.langfuse(Score(REQUEST, "x", value, label, "why " * 200, "model", TRACE, SPAN, 1.0))
    assert told["dataType"] == kind
    assert len(str(told["value"])) <= 500


def test_langsmith_finds_the_run_by_its_span_and_replaces() -> None:
    calls: list[str] = []

    def answer(asked: Asked) -> tuple[int, Any]:
        calls.append(f"{asked.method} {asked.path.partition('?')[0].split('/')[1]}")
        if asked.method == "GET":
            return 200, [{"id": "11111111-1111-1111-1111-111111111111"}]
        return (409 if asked.method == "POST" else 200), {}

    server, sender = sent(answer, receiver="langsmith", at="/otel")
    assert calls == ["GET sessions", "POST feedback", "PATCH feedback"]
    (body,) = server.bodies("/feedback")
    assert body["run_id"] == body["trace_id"] == f"00000000-0000-0000-{SPAN[:4]}-{SPAN[4:]}"
    assert body["session_id"] == "11111111-1111-1111-1111-111111111111"
    assert (body["key"], body["score"], body["value"]) == ("user_feedback", 1.0, "good")
    assert sender.lost == 0


def statuses(*given: int) -> Callable[[Asked], tuple[int, Any]]:
    left = list(given)
    return lambda asked: (left.pop(0), {})


def test_what_is_not_there_yet_is_tried_again_and_what_is_refused_is_not() -> None:
    with json_server(statuses(404, 503, 200)) as server:
        config = schema.Telemetry(endpoint=server.url, scores=Scores(receiver="phoenix"))
        sender = ScoreSender(config, server.url, pause=0.0, retries=(0.0, 0.0))
        sender.add(SCORE)
        assert sender.flush(60)
        sender.close()
    assert (len(server.asked), sender.lost) == (3, 0)
    server, sender = sent(statuses(401), receiver="phoenix")
    assert (len(server.asked), sender.lost) == (1, 1)


def test_a_receiver_that_is_away_loses_them(caplog: pytest.LogCaptureFixture) -> None:
    config = schema.Telemetry(endpoint="http://127.0.0.1:9", scores=Scores(receiver="otlp"))
    sender = ScoreSender(config, "http://127.0.0.1:9", pause=0.0, retries=())
    sender.add(SCORE)
    assert sender.flush(60)
    sender.close()
    assert sender.lost == 1
    assert "telemetry.scores" in caplog.text
