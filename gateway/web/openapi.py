"""The OpenAPI document (https://spec.openapis.org/oas/v3.1.1), made of the types that check what comes and goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from gateway.web.operation import JSON, Operation

_PARAMETER = re.compile(r"\{(\w+)(:\w+)?\}")
_REF = "#/components/schemas/{model}"
_ERRORS: Mapping[int, str] = {
    400: "The request is wrong; the message says where",
    401: "No key, or none that is known",
    403: "A good key, in the wrong place",
    404: "There is no such thing, or not for this key",
    405: "The path takes other methods",
    409: "It cannot be done as things stand",
    413: "The body is too large",
    415: "The body is compressed in a way that is not known here",
    429: "A limit is reached; `retry-after` says until when",
    500: "A bug of the gateway's",
    502: "The model's server failed",
    503: "It cannot be served now; `retry-after` says when to try again",
    504: "It took too long",
}
_SECURITY: Mapping[str, list[dict[str, list[str]]]] = {
    "inference": [{"bearer": []}, {"header": []}],
    "admin": [{"admin": []}],
    "metrics": [{"metrics": []}],
}


class OpenApiPage:
    """``/openapi.json``, which is the same for everybody."""

    def __init__(self, operations: Iterable[Operation], version: Callable[[], str]) -> None:
        self._operations = tuple(operations)
        self._version = version
        self._body: bytes | None = None

    async def page(self, request: Request) -> Response:
        if self._body is None:
            self._body = orjson.dumps(document(self._operations, self._version()))
        return Response(self._body, media_type=JSON)


def document(operations: Iterable[Operation], version: str) -> dict[str, Any]:
    operations = tuple(operations)
    names, schemas = _schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for one in operations:
        paths.setdefault(_PARAMETER.sub(r"{\1}", one.path), {})[one.method.lower()] = _operation(one, names)
    return {
        "openapi": "3.1.1",
        "info": {
            "title": "Tollgate",
            "version": version,
            "summary": "An LLM API gateway.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": {**schemas, "Error": _ERROR},
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key, or a JSON Web Token",
                },
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                "admin": {"type": "http", "scheme": "bearer", "description": "A key of scope `admin`"},
                "metrics": {"type": "http", "scheme": "bearer", "description": "The operator's token"},
            },
        },
    }


def _schemas(operations: Iterable[Operation]) -> tuple[dict[type[BaseModel], dict[str, Any]], dict[str, Any]]:
    """Each type's reference, and what it refers to."""
    wanted: dict[tuple[type[BaseModel], Any], None] = {}
    for one in operations:
        for model in (one.query, one.body):
            if model is not None:
                wanted[model, "validation"] = None
        for model in (*one.answers.values(), one.unready):
            if model is not None:
                wanted[model, "serialization"] = None
    references, definitions = models_json_schema(list(wanted), ref_template=_REF)
    known = {model: references[model, mode] for model, mode in wanted}
    return known, definitions.get("$defs", {})


def _operation(one: Operation, references: Mapping[type[BaseModel], dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": one.name,
        "summary": one.summary,
        "tags": [one.tag],
        "security": _SECURITY[one.scope] if one.scope else [],
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name, _ in _PARAMETER.findall(one.path)
    ]
    parameters += _query(one.query)
    if parameters:
        found["parameters"] = parameters
    if one.body is not None:
        found["requestBody"] = {"required": True, "content": {one.takes: {"schema": references[one.body]}}}
    found["responses"] = {
        str(one.status): {
            "description": "Done",
            "headers": {"x-request-id": {"schema": {"type": "string"}}},
            "content": {
                kind: {"schema": _answer(kind, model, references)} for kind, model in one.answers.items()
            },
        },
        **{str(status): _error(status) for status in sorted(_statuses(one))},
    }
    if one.unready is not None:
        found["responses"]["503"] = {
            "description": "Not ready",
            "headers": {"retry-after": {"schema": {"type": "string"}}},
            "content": {JSON: {"schema": references[one.unready]}},
        }
    return found


def _statuses(one: Operation) -> set[int]:
    always = {500, 503, *((401, 403) if one.scope else ())}
    if one.body is not None or one.query is not None or one.method in ("POST", "DELETE"):
        always |= {400, 413, 415}
    if one.scope == "admin":
        always |= {400, 404}  # where the policy has it off
    return always | set(one.errors)


def _query(model: type[BaseModel] | None) -> list[dict[str, Any]]:
    if model is None:
        return []
    schema = model.model_json_schema(ref_template=_REF)
    required = schema.get("required", [])
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "schema": _plain(one),
            **({"description": one["description"]} if "description" in one else {}),
        }
        for name, one in schema["properties"].items()
    ]


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Of a parameter that may be left out: it cannot be null in a query."""
    branches = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if len(branches) == 1:
        schema = {
            name: value for name, value in schema.items() if name not in ("anyOf", "default")
        } | branches[0]
    return {name: value for name, value in schema.items() if name not in ("title", "description")}


def _answer(
    kind: str, model: type[BaseModel] | None, references: Mapping[type[BaseModel], dict[str, Any]]
) -> dict[str, Any]:
    if model is not None:
        return references[model]
    return {"type": "object"} if kind == JSON else {"type": "string"}


def _error(status: int) -> dict[str, Any]:
    content = {JSON: {"schema": {"$ref": _REF.format(model="Error")}}}
    headers = {"x-request-id": {"schema": {"type": "string"}}}
    return {"description": _ERRORS[status], "headers": headers, "content": content}


_ERROR: Mapping[str, Any] = {
    "title": "Error",
    "description": "OpenAI's form; on Anthropic's paths theirs, which has `type` beside `error`.",
    "type": "object",
    "required": ["error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        },
    },
}
