"""The formats of servers that only say what they find.

``moderations``: OpenAI's (https://platform.openai.com/docs/api-reference/moderations), which many others speak.
``classify``: vLLM's and SGLang's (https://docs.vllm.ai/en/stable/serving/openai_compatible_server.html).
``predict``: text-embeddings-inference's (https://huggingface.github.io/text-embeddings-inference/).
``presidio``: Presidio's analyzer (https://microsoft.github.io/presidio/api-docs/api-docs.html).
``lakera``: Lakera Guard 2 (https://docs.lakera.ai/docs/api/guard).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field, TypeAdapter

from gateway.findings import Finding
from gateway.guards.scanners.scanner import Origin
from gateway.guards.scanners.webhook_formats import (
    MAX_FINDINGS,
    Answer,
    Format,
    Label,
    Question,
    Score,
    label,
    same_number,
    within,
)
from gateway.types import Json

_ROLES: Mapping[Origin, str] = {"system": "system", "assistant": "assistant", "answer": "assistant"}
"""Of Lakera's messages; all others are the user's."""


class _Moderation(Answer):
    flagged: bool
    categories: dict[str, bool | None] = Field(default={})
    category_scores: dict[str, Score | None] = Field(default={})


class _Moderations(Answer):
    results: list[_Moderation]


class _Class(Answer):
    label: Label
    probs: Annotated[list[Score], Field(min_length=1)]


class _Classes(Answer):
    data: list[_Class]


class _Scored(Answer):
    label: Label
    score: Score


class _Entity(Answer):
    entity_type: Label
    start: int
    end: int
    score: Score = 1.0


class _Detected(Answer):
    detector_type: Label
    detected: bool


class _Located(Answer):
    detector_type: Label
    start: int
    end: int


class _Screened(Answer):
    flagged: bool
    breakdown: list[_Detected] | None = None
    payload: Annotated[list[_Located], Field(max_length=MAX_FINDINGS)] | None = None


_PREDICTIONS = TypeAdapter(list[list[_Scored]])
_ENTITIES = TypeAdapter(Annotated[list[_Entity], Field(max_length=MAX_FINDINGS)])


def _with_model(asked: Question) -> Mapping[str, Json]:
    model = {"model": asked.config.model} if asked.config.model else {}
    return {**asked.config.params, **model, "input": list(asked.texts)}


def _moderations(texts: Sequence[str], body: bytes) -> list[list[Finding]]:
    results = _Moderations.model_validate_json(body).results
    return [_moderated(result, text) for result, text in same_number(results, texts)]


def _moderated(result: _Moderation, text: str) -> list[Finding]:
    """What its server flags, by its own thresholds, which is sure; and the scores of the rest."""
    flagged = {name for name, is_flagged in result.categories.items() if is_flagged}
    if result.flagged and not flagged:
        flagged = {"flagged"}
    scores = {name: score for name, score in result.category_scores.items() if score is not None}
    return [
        Finding(label(name), 0, len(text), 1.0 if name in flagged else scores[name])
        for name in dict.fromkeys((*flagged, *scores))
    ]


def _classes(texts: Sequence[str], body: bytes) -> list[list[Finding]]:
    data = _Classes.model_validate_json(body).data
    return [
        [Finding(label(one.label), 0, len(text), max(one.probs))] for one, text in same_number(data, texts)
    ]


def _inputs(asked: Question) -> Mapping[str, Json]:
    return {"truncate": True, **asked.config.params, "inputs": [[text] for text in asked.texts]}


def _predictions(texts: Sequence[str], body: bytes) -> list[list[Finding]]:
    predictions = _PREDICTIONS.validate_json(body, strict=True)
    return [
        [Finding(label(one.label), 0, len(text), one.score) for one in classes]
        for classes, text in same_number(predictions, texts)
    ]


def _analysis(asked: Question) -> Mapping[str, Json]:
    return {"language": "en", **asked.config.params, "text": asked.texts[0]}


def _entities(texts: Sequence[str], body: bytes) -> list[list[Finding]]:
    return [
        [
            Finding(label(one.entity_type), *within(one.start, one.end, texts[0]), one.score)
            for one in _ENTITIES.validate_json(body, strict=True)
        ]
    ]


def _messages(asked: Question) -> Mapping[str, Json]:
    role = _ROLES.get(asked.origin, "user")
    return {
        "breakdown": True,
        "payload": True,
        **asked.config.params,
        "messages": [{"role": role, "content": asked.texts[0]}],
    }


def _screened(texts: Sequence[str], body: bytes) -> list[list[Finding]]:
    answer = _Screened.model_validate_json(body)
    if not answer.flagged:
        return [[]]
    text = texts[0]
    found = [
        Finding(label(one.detector_type), *within(one.start, one.end, text)) for one in answer.payload or ()
    ]
    located = {one.label for one in found}
    names = [label(one.detector_type) for one in answer.breakdown or () if one.detected]
    found += [Finding(name, 0, len(text)) for name in dict.fromkeys(names) if name not in located]
    return [found or [Finding("flagged", 0, len(text))]]


SERVICES: Mapping[str, Format] = {
    "moderations": Format(_with_model, _moderations),
    "classify": Format(_with_model, _classes),
    "predict": Format(_inputs, _predictions),
    "presidio": Format(_analysis, _entities, takes_many=False),
    "lakera": Format(_messages, _screened, takes_many=False),
}
