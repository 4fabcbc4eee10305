"""Google's ``Schema``, a part of OpenAPI's (https://ai.google.dev/api/caching#Schema), as JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.errors import BadRequest
from gateway.types import Json

DEEPEST = 100
_COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
"""Of 64 bits, which Google's JSON has as texts."""
_DROPPED = frozenset({"nullable", "propertyOrdering", "property_ordering", "type"})
_SNAKE = {
    "any_of": "anyOf",
    "min_items": "minItems",
    "max_items": "maxItems",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_properties": "minProperties",
    "max_properties": "maxProperties",
}


def to_json_schema(schema: Json, where: str, level: int = 0) -> dict[str, Json]:
    """Raises ``BadRequest``. Schemas that are JSON Schema already come out as they were."""
    if not isinstance(schema, Mapping) or level > DEEPEST:
        raise BadRequest(f"'{where}' should be a schema.", param=where, code="invalid_value")
    found: dict[str, Json] = {}
    kind = schema.get("type")
    if isinstance(kind, str) and kind != "TYPE_UNSPECIFIED":
        found["type"] = kind.lower()
    elif isinstance(kind, list):
        found["type"] = [one.lower() if isinstance(one, str) else one for one in kind]
    for name, value in schema.items():
        if name in _DROPPED or value is None:
            continue
        name = _SNAKE.get(str(name), str(name))
        at = f"{where}.{name}"
        if name == "properties" and isinstance(value, Mapping):
            found[name] = {key: to_json_schema(one, f"{at}.{key}", level + 1) for key, one in value.items()}
        elif name in ("items", "additionalProperties") and isinstance(value, Mapping):
            found[name] = to_json_schema(value, at, level + 1)
        elif name in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
            found[name] = [to_json_schema(one, f"{at}[{i}]", level + 1) for i, one in enumerate(value)]
        elif name in _COUNTS and isinstance(value, str) and value.isdecimal():
            found[name] = int(value[:20])
        elif name == "format" and value == "enum":
            continue
        else:
            found[name] = value
    return _nullable(found) if schema.get("nullable") is True else found


def _nullable(schema: dict[str, Json]) -> dict[str, Json]:
    kind = schema.get("type")
    if isinstance(kind, str):
        schema["type"] = [kind, "null"]
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
    elif isinstance(schema.get("anyOf"), list):
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    return schema


def closed(schema: Json) -> Json:
    """``schema`` whose objects have no other properties than those it names: answers of Google's models have none."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    found: dict[str, Json] = {}
    for name, value in schema.items():
        if name in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
            found[name] = {key: closed(one) for key, one in value.items()}
        elif name in ("items", "anyOf", "oneOf", "prefixItems"):
            found[name] = closed(value)
        else:
            found[name] = value
    if isinstance(found.get("properties"), Mapping) and found["properties"]:
        found.setdefault("additionalProperties", False)
    return found


def is_strict(schema: Json) -> bool:
    """Whether OpenAI's strict mode takes it: every object is closed, and all its properties are required."""
    if isinstance(schema, list):
        return all(map(is_strict, schema))
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties")
        required = schema.get("required")
        if (
            not isinstance(properties, Mapping)
            or schema.get("additionalProperties") is not False
            or not isinstance(required, list)
            or {*properties} - {one for one in required if isinstance(one, str)}
        ):
            return False
    return all(map(is_strict, _below(schema)))


def _below(schema: Mapping[str, Json]) -> Iterator[Json]:
    """The schemas that ``schema`` is made of."""
    for name in ("properties", "$defs", "definitions"):
        if isinstance(inner := schema.get(name), Mapping):
            yield from inner.values()
    for name in ("items", "anyOf", "oneOf", "allOf", "prefixItems"):
        if (inner := schema.get(name)) is not None:
            yield inner
