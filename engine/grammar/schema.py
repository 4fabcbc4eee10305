"""JSON schemas normalised for llguidance, without changing which answers are valid.

- Keywords without effect are removed where llguidance does not know them: ``uniqueItems: false``, an unknown ``format``
  (an annotation: https://json-schema.org/draft/2020-12/json-schema-validation#section-7.2).
- Objects that do not mention ``additionalProperties`` are closed.
- Counts written as 2.0 become 2, which JSON Schema treats alike and llguidance does not.
- Fractions of a second have at most nine digits: RFC 3339 sets no end, and a model that may not close ``"09:30:00``
  yet, as the offset is missing, goes on with zeros.
- Unbounded strings get a ``maxLength`` where the caller asks for one, so that a small model's answer ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

_OF_ONE = (
    *("additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames"),
    *("then", "unevaluatedItems", "unevaluatedProperties"),
)
_OF_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_OF_NAMES = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
"""Keywords whose value is a schema, a list of schemas, or schemas by name."""
_MIXED = ("$ref", "allOf", "anyOf", "dependentSchemas", "else", "if", "not", "oneOf", "then")
"""Keywords that may add properties to an object."""
_BOUNDS = ("const", "enum", "maxLength", "pattern")
_ENDLESS = frozenset({"duration", "email", "hostname", "uri"})
"""Formats whose strings may have any length."""
_SECONDS = r"^[^.]*(\.[0-9]{1,9}([^0-9].*)?)?$"
"""Of strings in the formats ``time`` and ``date-time``, which it is beside."""
_NUMBER_BOUNDS = ("const", "enum", "exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum", "multipleOf")
_COUNTS = frozenset(
    {
        *("maxContains", "maxItems", "maxLength", "maxProperties"),
        *("minContains", "minItems", "minLength", "minProperties"),
    }
)
_FORMATS = frozenset(
    {
        *("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri"),
        "uuid",
    }
)
"""The formats that llguidance knows."""
_INT64 = 9 * 10**18
"""The range of integers that most JSON parsers accept; more digits are a sign of a model in a loop."""


def prepared(schema: Schema, *, longest: int | None = None) -> Schema:
    """``schema`` closed and without keywords of no effect; unbounded strings get ``longest`` characters."""
    return _Preparation(closes=not _merges(schema), longest=longest).of(schema)


class _Preparation:
    def __init__(self, *, closes: bool, longest: int | None) -> None:
        self._closes = closes
        self._longest = longest

    def of(self, schema: Any, *, mixed: bool = False) -> Any:
        """``mixed``: another schema adds properties to these."""
        if not isinstance(schema, dict):
            return schema
        found = {name: value for name, value in schema.items() if not _has_no_effect(name, value)}
        if set(found) & {"if", "then", "else"} and not ("if" in found and {"then", "else"} & set(found)):
            found = {name: value for name, value in found.items() if name not in ("if", "then", "else")}
        within = mixed or ("properties" in found and any(name in found for name in _MIXED))
        for name, value in list(found.items()):
            if name in _COUNTS and isinstance(value, float) and value.is_integer():
                found[name] = int(value)
            elif name in _OF_LISTS and isinstance(value, list):
                found[name] = [self.of(one, mixed=within) for one in value]
            elif name in _OF_ONE and isinstance(value, dict):
                found[name] = self.of(value)
            elif name in _OF_NAMES and isinstance(value, dict):
                found[name] = {key: self.of(one) for key, one in value.items()}
        if self._closes and not mixed and _is_open(found):
            found["additionalProperties"] = False
        if found.get("format") in ("date-time", "time") and "pattern" not in found:
            found["pattern"] = _SECONDS
        self._bound(found)
        return found

    def _bound(self, schema: Schema) -> None:
        if self._longest is None:
            return
        kinds = schema.get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        bounded = any(name in schema for name in _BOUNDS) or schema.get("format", "uri") not in _ENDLESS
        if "string" in kinds and not bounded:
            least = schema.get("minLength")
            schema["maxLength"] = max(self._longest, least if isinstance(least, int) else 0)
        if "integer" in kinds and not any(name in schema for name in _NUMBER_BOUNDS):
            schema |= {"minimum": -_INT64, "maximum": _INT64}


def _has_no_effect(name: str, value: Any) -> bool:
    match name:
        case "uniqueItems":
            return value is False
        case "propertyNames":
            return value is True or value in ({}, {"type": "string"})
        case "unevaluatedItems" | "unevaluatedProperties":
            return value is True or value == {}
        case "dependentRequired" | "dependentSchemas":
            return value == {}
        case "format":
            return isinstance(value, str) and value not in _FORMATS
    return False


def _is_open(schema: Mapping[str, Any]) -> bool:
    """An object with ``properties`` that neither mentions nor requires others."""
    names = schema.get("properties")
    if not isinstance(names, dict) or not names or any(name in schema for name in _MIXED):
        return False
    if {"additionalProperties", "unevaluatedProperties", "patternProperties"} & schema.keys():
        return False
    needed, least = schema.get("required"), schema.get("minProperties", 0)
    if isinstance(needed, list) and not all(isinstance(name, str) and name in names for name in needed):
        return False
    return isinstance(least, int) and least <= len(names)


def _merges(schema: Any) -> bool:
    """Whether any object's properties come from several subschemas: then no object is closed."""
    if isinstance(schema, list):
        return any(_merges(one) for one in schema)
    if not isinstance(schema, dict):
        return False
    if "allOf" in schema or ("$ref" in schema and "properties" in schema):
        return True
    return any(_merges(value) for name, value in schema.items() if name not in ("const", "default", "enum"))
