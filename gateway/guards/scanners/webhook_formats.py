"""What is sent to an HTTP server that judges texts, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gateway.findings import Finding
from gateway.guards.scanners.scanner import Origin, Unscanned
from gateway.policy.schema.guards import WebhookGuard
from gateway.types import Call, Json

_Score = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Answer(BaseModel):
    model_config = ConfigDict(strict=True)


class _Found(_Answer):
    label: Annotated[str, Field(min_length=1, max_length=128)]
    start: Annotated[int, Field(ge=0)] = 0
    end: int | None = None
    score: _Score = 1.0


class _Verdict(_Answer):
    findings: list[_Found] = []


class _Verdicts(_Answer):
    verdicts: list[_Verdict]


class _Moderation(_Answer):
    flagged: bool
    categories: dict[str, bool | None] = {}
    category_scores: dict[str, _Score | None] = {}


class _Moderations(_Answer):
    results: list[_Moderation]


class _Class(_Answer):
    label: str
    score: _Score


_CLASSES = TypeAdapter(list[list[_Class]])


def question(
    config: WebhookGuard, name: str, texts: Sequence[str], origin: Origin, call: Call | None
) -> bytes:
    """The body of a POST: of our own, of OpenAI's moderations, or of text-embeddings-inference's ``/predict``."""
    body: dict[str, Json]
    if config.format == "moderations":
        body = {"input": list(texts)} | ({"model": config.model} if config.model else {})
    elif config.format == "classification":
        body = {"inputs": [[text] for text in texts], "truncate": True}
    else:
        body = {
            "guard": name,
            "direction": "output" if origin == "answer" else "input",
            "request_id": call.request_id if call else None,
            "tenant": call.principal.tenant if call else None,
            "key_id": call.principal.key_id if call else None,
            "model": call.model if call else None,
            "texts": [{"text": text, "origin": origin} for text in texts],
        }
    return orjson.dumps(body)


def findings(config: WebhookGuard, texts: Sequence[str], body: bytes) -> list[list[Finding]]:
    """Those of each text, whatever their score. Raises ``Unscanned`` for what is no answer to the question."""
    try:
        found = _read(config, texts, body)
    except ValidationError as error:
        where = ".".join(str(step) for step in error.errors()[0]["loc"])
        raise Unscanned(f"its answer is not in the format '{config.format}', at '{where}'") from None
    if len(found) != len(texts):
        raise Unscanned(f"it was asked of {len(texts)} texts, and answered of {len(found)}")
    return found


def _read(config: WebhookGuard, texts: Sequence[str], body: bytes) -> list[list[Finding]]:
    if config.format == "moderations":
        return [
            _moderated(result, text)
            for result, text in zip(_Moderations.model_validate_json(body).results, texts, strict=False)
        ]
    if config.format == "classification":
        return [
            [Finding(one.label, 0, len(text), one.score) for one in classes]
            for classes, text in zip(_CLASSES.validate_json(body), texts, strict=False)
        ]
    return [
        [found for one in verdict.findings if (found := _span(one, text)) is not None]
        for verdict, text in zip(_Verdicts.model_validate_json(body).verdicts, texts, strict=False)
    ]


def _span(one: _Found, text: str) -> Finding | None:
    end = len(text) if one.end is None else min(one.end, len(text))
    return Finding(one.label, one.start, end, one.score) if one.start < end else None


def _moderated(result: _Moderation, text: str) -> list[Finding]:
    """What its server flags, by its own thresholds, which is sure; and the scores of the rest."""
    flagged = {name for name, is_flagged in result.categories.items() if is_flagged}
    if result.flagged and not flagged:
        flagged = {"flagged"}
    scores = {name: score for name, score in result.category_scores.items() if score is not None}
    return [
        Finding(name, 0, len(text), 1.0 if name in flagged else scores[name])
        for name in dict.fromkeys((*flagged, *scores))
    ]
