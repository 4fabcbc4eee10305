"""What somebody thinks of a request's answer, and the form that each receiver takes it in.

- OpenTelemetry: the event ``gen_ai.evaluation.result``
  (https://github.com/open-telemetry/semantic-conventions-genai/blob/main/docs/gen-ai/gen-ai-events.md).
- Langfuse: ``POST /api/public/scores`` (https://langfuse.com/docs/evaluation/evaluation-methods/scores-via-sdk).
- Phoenix: ``POST /v1/span_annotations``
  (https://arize.com/docs/phoenix/tracing/how-to-tracing/feedback-and-annotations/capture-feedback).
- LangSmith: ``POST /feedback`` (https://docs.langchain.com/langsmith/feedback-data-format). A run that came by OTLP has
  its span's id at the end of a UUID of zeros.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from gateway.observe.telemetry.otlp_json import log_record
from gateway.spans import Attributes

Source = Literal["human", "model", "code"]

EVENT = "gen_ai.evaluation.result"
LONGEST_TEXT = 500
"""Characters of a score that is a text, for Langfuse."""
_ANNOTATORS: Mapping[Source, str] = {"human": "HUMAN", "model": "LLM", "code": "CODE"}
_MADE_UP = re.compile(r"req_([0-9a-f]{11})[0-9a-f]{13}")
"""A gateway's id, which begins with its time in milliseconds."""
_NAMESPACE = uuid.UUID("5f0f4a0e-6c0e-5f7a-9d57-0d7c3c5b1a64")


@dataclass(frozen=True, slots=True)
class Score:
    """At least one of ``value``, ``label`` and ``comment``; another of this name and request replaces it."""

    request_id: str
    name: str
    value: float | None
    label: str | None
    comment: str | None
    source: Source
    trace_id: str
    span_id: str
    """Of the request's own span."""
    created: float
    """Unix time."""


def event(score: Score) -> dict[str, Any]:
    """A log record as OTLP has it in JSON."""
    attributes: Attributes = {
        "gen_ai.evaluation.name": score.name,
        "tollgate.request_id": score.request_id,
        "tollgate.evaluation.source": score.source,
    }
    if score.value is not None:
        attributes["gen_ai.evaluation.score.value"] = float(score.value)
    if score.label is not None:
        attributes["gen_ai.evaluation.score.label"] = score.label
    if score.comment is not None:
        attributes["gen_ai.evaluation.explanation"] = score.comment
    return log_record(EVENT, int(score.created * 1e9), score.trace_id, score.span_id, attributes)


def langfuse(score: Score) -> dict[str, Any]:
    """A score of the trace. One whose id and time are known replaces the earlier one."""
    value: float | str
    if score.value is not None:
        kind, value = "NUMERIC", float(score.value)
    elif score.label is not None:
        kind, value = "CATEGORICAL", score.label
    else:
        kind, value = "TEXT", (score.comment or "")[:LONGEST_TEXT]
    found = {
        "id": f"{score.request_id}-{score.name}",
        "traceId": score.trace_id,
        "name": score.name,
        "value": value,
        "dataType": kind,
        "metadata": {
            "request_id": score.request_id,
            "source": score.source,
            **({} if score.label is None else {"label": score.label}),
        },
    }
    if score.comment is not None:
        found["comment"] = score.comment
    if (made := _MADE_UP.fullmatch(score.request_id)) is not None:
        found["timestamp"] = _iso(int(made[1], 16) / 1000)
    return found


def phoenix(score: Score) -> dict[str, Any]:
    result = {"score": score.value, "label": score.label, "explanation": score.comment}
    return {
        "span_id": score.span_id,
        "name": score.name,
        "annotator_kind": _ANNOTATORS[score.source],
        "result": {name: value for name, value in result.items() if value is not None},
        "metadata": {"request_id": score.request_id},
    }


def langsmith(score: Score) -> dict[str, Any]:
    run = str(uuid.UUID(score.span_id.zfill(32)))
    found = {
        "id": str(uuid.uuid5(_NAMESPACE, f"{score.request_id} {score.name}")),
        "run_id": run,
        "trace_id": run,
        "key": score.name,
        # More digits than it keeps are refused.
        "score": None if score.value is None else round(score.value, 4),
        "value": score.label,
        "comment": score.comment,
        "feedback_source": {
            "type": "model" if score.source == "model" else "api",
            "metadata": {"request_id": score.request_id, "source": score.source},
        },
        "created_at": _iso(score.created),
    }
    return {name: value for name, value in found.items() if value is not None}


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()
