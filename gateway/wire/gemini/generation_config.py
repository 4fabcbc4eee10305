"""What other models are told of ``generationConfig`` (https://ai.google.dev/api/generate-content#generationconfig)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from gateway.types import Json
from gateway.wire import json_body
from gateway.wire.gemini.schemas import closed, is_strict, to_json_schema
from gateway.wire.openai.chat import Lenient

Beyond = tuple[str, str] | None

NAMES: Mapping[str, str] = {
    "temperature": "temperature",
    "topP": "top_p",
    "maxOutputTokens": "max_completion_tokens",
    "stopSequences": "stop",
    "candidateCount": "n",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "responseLogprobs": "logprobs",
    "logprobs": "top_logprobs",
}
"""Values that are taken over as they are."""
TRANSLATED = frozenset({"topK", "responseMimeType", "responseSchema", "responseJsonSchema"})
IGNORED = frozenset(
    {
        *("audioTimestamp", "enableAffectiveDialog", "enableEnhancedCivicAnswers", "mediaResolution"),
        *("modelSelectionConfig", "routingConfig", "thinkingConfig"),
    }
)
"""Effort, resolution and choice of a model: other models are asked without, as each has ways of its own."""
BEYOND: Mapping[str, str] = {
    "imageConfig": "about pictures that the model makes",
    "responseModalities": "another kind of answer than text",
    "speechConfig": "about speech that the model makes",
}
NEUTRAL: Mapping[str, tuple[Json, ...]] = {
    "responseModalities": ([], ["TEXT"], ["MODALITY_UNSPECIFIED"]),
}
_SCHEMAS = ("responseJsonSchema", "_responseJsonSchema")


MOST_TOP_K = 2**31 - 1
"""An int32, as Google's other numbers of tokens are: no vocabulary is larger."""


class GenerationConfig(Lenient):
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    topP: Annotated[float, Field(ge=0, le=1)] | None = None
    topK: Annotated[float, Field(ge=0, le=MOST_TOP_K)] | None = None
    maxOutputTokens: Annotated[int, Field(ge=1)] | None = None
    stopSequences: json_body.Items[str] | None = None
    candidateCount: Annotated[int, Field(ge=1, le=128)] | None = None
    seed: int | None = None
    presencePenalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequencyPenalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    responseLogprobs: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    responseMimeType: str | None = None
    responseSchema: dict[str, Any] | None = None
    thinkingConfig: dict[str, Any] | None = None


def read(known: GenerationConfig | None, raw: Mapping[str, Json]) -> tuple[dict[str, Json], Beyond]:
    """Parameters by their canonical names, and the first that no other model knows. Raises ``BadRequest``."""
    if known is None:
        return {}, None
    params = {ours: raw[theirs] for theirs, ours in NAMES.items() if theirs in raw}
    if "logprobs" in raw and not raw.get("responseLogprobs"):
        del params["top_logprobs"]  # of none
    if params.get("stop") == []:
        del params["stop"]
    if known.topK:
        params["top_k"] = int(known.topK)
    form, beyond = _form(raw)
    for name, value in raw.items():
        if name in NAMES or name in TRANSLATED or name in IGNORED or name in _SCHEMAS:
            continue
        if value not in NEUTRAL.get(name, ()):
            what = BEYOND.get(name, "a field that is not known here")
            beyond = beyond or (f"generationConfig.{name[:64]}", what)
    return {**params, **form}, beyond


def _form(raw: Mapping[str, Json]) -> tuple[dict[str, Json], Beyond]:
    """The form of the answer that is asked for."""
    kind = raw.get("responseMimeType") or "text/plain"
    schema: Json = None
    for name in ("responseSchema", *_SCHEMAS):
        if raw.get(name) is not None:
            schema = raw[name]
            if name == "responseSchema":
                schema = to_json_schema(schema, f"generationConfig.{name}")
    match kind:
        case "text/plain":
            return {}, None
        case "application/json" if schema is None:
            return {"response_format": {"type": "json_object"}}, None
        case "application/json":
            shape: dict[str, Json] = {"name": "answer", "schema": closed(schema)}
            if is_strict(shape["schema"]):
                shape["strict"] = True
            return {"response_format": {"type": "json_schema", "json_schema": shape}}, None
    return {}, ("generationConfig.responseMimeType", f"'{kind[:64]}'")
