"""The published OpenAPI documents, cut down to what is to be fuzzed.

Where none is named on the command line, the copies are taken that llm-comply carries: OpenAI's own document
(https://github.com/openai/openai-openapi) and the one from which Anthropic's SDKs are made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.conformance import tools

Json = dict[str, Any]

OPENAI_PATHS = (
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/moderations",
    "/models",
    "/models/{model}",
)
ENGINE_PATHS = ("/chat/completions", "/completions", "/models", "/models/{model}")
ANTHROPIC_PATHS = ("/v1/messages", "/v1/messages/count_tokens", "/v1/models", "/v1/models/{model_id}")

MOST_TOKENS = 16
"""Of an answer: what is fuzzed is the request, and a small model can go on for long."""

_TEXT: Json = {"type": "string"}
_HEADERS: Mapping[str, Json] = {
    "accept": _TEXT,
    "anthropic-beta": _TEXT,
    "content-encoding": {"enum": ["identity"]},
    "expect": _TEXT,
    "origin": _TEXT,
    "traceparent": _TEXT,
    "x-forwarded-for": _TEXT,
    "x-request-id": _TEXT,
    "x-tollgate-cache": _TEXT,
    "x-tollgate-deadline": {"enum": ["30s", "2500ms"]},
    "x-tollgate-priority": {"enum": ["0", "2"]},
    "x-tollgate-weight": {"enum": ["1", "8"]},
}
"""What is read beside the body and the key, published or not; those that can be wrong, with what is right."""


def carried(name: str) -> Path:
    """The document that llm-comply carries, ``openai_chat`` or ``anthropic``. Raises ``tools.Missing``."""
    python = tools.from_pypi(tools.LLM_COMPLY)
    [found] = python.parents[1].glob(f"lib/python*/site-packages/llm_comply/specs/{name}.json")
    return found


_PROMPT: Json = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "maxItems": 4, "items": {"type": "string", "minLength": 1}},
        {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": 500}},
    ]
}
"""The published one may be null, which stands for the beginning of a document of OpenAI's own models."""

NOT_THE_ENGINES = (
    "audio",
    "best_of",
    "function_call",
    "functions",
    "modalities",
    "suffix",
    "web_search_options",
)
"""Parameters that the engine refuses, so that a request with one gets no further."""


def cut(
    document: Path,
    paths: Sequence[str],
    models: Sequence[str],
    *,
    prefix: str = "",
    without: Sequence[str] = (),
) -> Json:
    """``document`` (JSON or YAML) with ``paths`` alone, each with ``prefix`` before it, and what they refer to.

    So that requests get past the first question, a body has the published fields only, ``model`` is one of ``models``,
    an answer may be asked to have ``MOST_TOKENS``, and there are some messages. (Requests that break these rules are
    made up all the same, on purpose.) Fields named in ``without`` are left out, and so is security: the fuzzer sends a
    good key.
    """
    text = document.read_text()
    spec = yaml.safe_load(text) if document.suffix in (".yaml", ".yml") else json.loads(text)
    schemas = spec["components"]["schemas"]
    kept = {path: spec["paths"][path] for path in paths}
    for item in kept.values():
        for operation in item.values():
            _open(operation, schemas, models, without)
    return {
        "openapi": spec["openapi"],
        "info": {"title": spec["info"]["title"], "version": str(spec["info"].get("version", ""))},
        "paths": {prefix + path: item for path, item in kept.items()},
        "components": {"schemas": {name: schemas[name] for name in _reached(kept, schemas)}},
    }


def _open(operation: Json, schemas: Json, models: Sequence[str], without: Sequence[str]) -> None:
    operation.pop("security", None)
    parameters = operation.setdefault("parameters", [])
    for parameter in parameters:
        if parameter.get("in") == "path":
            parameter["schema"] = {"type": "string", "enum": [*models, "none-such"]}
    known = {parameter.get("name") for parameter in parameters}
    parameters += [
        {"name": name, "in": "header", "required": False, "schema": schema}
        for name, schema in _HEADERS.items()
        if name not in known
    ]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body is not None:
        body["schema"] = _narrow(body["schema"], schemas, models)
        for name in without:
            body["schema"]["properties"].pop(name, None)


def _narrow(schema: Json, schemas: Json, models: Sequence[str]) -> Json:
    """A body's schema as one object. Both specifications put bodies together by ``allOf`` at most."""
    fields: Json = {}
    required: set[str] = set()
    for part in _parts(schema, schemas):
        fields |= part.get("properties", {})
        required |= {*part.get("required", ())}
    fields["model"] = {"type": "string", "enum": [*models]}
    if "max_tokens" in fields:
        fields["max_tokens"] = {"type": "integer", "minimum": 1, "maximum": MOST_TOKENS}
        fields.pop("max_completion_tokens", None)  # says the same, and may not be sent beside it
        required.add("max_tokens")
    fields.pop("stream_options", None)  # only beside "stream": true, which a schema cannot say
    if "prompt" in fields:
        fields["prompt"] = _PROMPT
    if "messages" in fields:
        fields["messages"] = {**fields["messages"], "minItems": 1, "maxItems": 4}
    return {
        "type": "object",
        "properties": fields,
        "required": sorted(required),
        "additionalProperties": False,
    }


def _parts(schema: Json, schemas: Json) -> Iterator[Json]:
    """``schema`` and those that it is put together from."""
    if "$ref" in schema:
        yield from _parts(schemas[schema["$ref"].rpartition("/")[2]], schemas)
        return
    yield schema
    for part in schema.get("allOf", ()):
        yield from _parts(part, schemas)


def _reached(part: Any, schemas: Json) -> list[str]:
    """The schemas that ``part`` refers to, and those that they refer to."""
    found: dict[str, None] = {}
    waiting = [part]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
            name = str(value.get("$ref", "")).rpartition("/")[2]
            if name in schemas and name not in found:
                found[name] = None
                waiting.append(schemas[name])
            # A discriminator's mapping names schemas, too.
            mapping = (value.get("discriminator") or {}).get("mapping") or {}
            waiting += [{"$ref": target} for target in mapping.values()]
    return list(found)
