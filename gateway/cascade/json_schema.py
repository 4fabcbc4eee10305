"""A validator for the common part of JSON Schema (https://json-schema.org/draft/2020-12).

Schemas come from callers, so this one runs no regular expression of theirs, fetches nothing, generates no code,
and does a bounded amount of work. What it does not know (``pattern``, ``format``, ``if`` …) it ignores: a wrong
"valid" costs a small model's answer, which the caller would have checked anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

from gateway.types import Json

MAX_CHECKS = 5_000
"""Pairs of a schema and a value checked before the answer passes; some 10 ms."""
MAX_DEPTH = 64


class _TooMuch(Exception):
    pass


def allows(schema: Json, value: Json) -> bool:
    """Whether ``value``, parsed from JSON, fits ``schema``. True as well where that takes more than ``MAX_CHECKS``."""
    try:
        return _Validator(schema).allows(schema, value, 0)
    except _TooMuch:
        return True


class _Validator:
    def __init__(self, root: Json) -> None:
        self._root = root
        self._left = MAX_CHECKS

    def allows(self, schema: Json, value: Json, depth: int) -> bool:
        self._left -= 1
        if self._left < 0 or depth > MAX_DEPTH:
            raise _TooMuch
        if not isinstance(schema, dict):
            return schema is not False
        return (
            self._is_of_type(schema, value)
            and self._is_listed(schema, value)
            and self._combines(schema, value, depth)
            and _within_bounds(schema, value)
            and self._parts(schema, value, depth)
        )

    def _is_of_type(self, schema: dict[str, Any], value: Json) -> bool:
        wanted = schema.get("type")
        names = wanted if isinstance(wanted, list) else [wanted]
        return wanted is None or any(_TYPES.get(name, _anything)(value) for name in names if _is_text(name))

    def _is_listed(self, schema: dict[str, Any], value: Json) -> bool:
        if "const" in schema and not _equal(schema["const"], value):
            return False
        listed = schema.get("enum")
        return not isinstance(listed, list) or any(_equal(entry, value) for entry in listed)

    def _combines(self, schema: dict[str, Any], value: Json, depth: int) -> bool:
        def fits(other: Json) -> bool:
            return self.allows(other, value, depth + 1)

        reference = schema.get("$ref")
        if _is_text(reference) and not fits(self._referred(reference)):
            return False
        if isinstance(every := schema.get("allOf"), list) and not all(map(fits, every)):
            return False
        if isinstance(some := schema.get("anyOf"), list) and not any(map(fits, some)):
            return False
        if isinstance(one := schema.get("oneOf"), list) and sum(map(fits, one)) != 1:
            return False
        return "not" not in schema or not fits(schema["not"])

    def _parts(self, schema: dict[str, Any], value: Json, depth: int) -> bool:
        if isinstance(value, dict):
            required = schema.get("required")
            if isinstance(required, list) and not all(name in value for name in required if _is_text(name)):
                return False
            known = _mapping(schema.get("properties"))
            rest = schema.get("additionalProperties", True)
            # Which names a pattern covers is not known here, so that none counts as additional beside it.
            rest = True if "patternProperties" in schema else rest
            return all(self.allows(known.get(name, rest), part, depth + 1) for name, part in value.items())
        if isinstance(value, list):
            first = schema.get("prefixItems")
            first = first if isinstance(first, list) else []
            rest = schema.get("items", True)
            kinds = [*first[: len(value)], *[rest] * (len(value) - len(first))]
            return all(self.allows(kind, part, depth + 1) for kind, part in zip(kinds, value, strict=True))
        return True

    def _referred(self, reference: str) -> Json:
        """What a reference within the document points to (RFC 6901); any other allows everything."""
        found = self._root if reference.startswith("#") else True
        for step in reference[1:].split("/")[1:] if reference.startswith("#") else ():
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict):
                return True
            found = found.get(name, True)
        return found


def _within_bounds(schema: dict[str, Any], value: Json) -> bool:
    for keyword, bound in schema.items():
        check = _BOUNDS.get(keyword)
        if check is not None and _is_number(bound) and not check(value, bound):
            return False
    return True


def _equal(one: Json, other: Json) -> bool:
    # In JSON true is not 1; in Python it is.
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _mapping(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, dict) else {}


def _anything(value: Json) -> bool:
    return True


def _is_text(value: Json) -> TypeGuard[str]:
    return isinstance(value, str)


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: Json) -> bool:
    return _is_number(value) and value % 1 == 0


_TYPES: Mapping[str, Callable[[Json], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": _is_text,
    "number": _is_number,
    "integer": _is_integer,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}
_BOUNDS: Mapping[str, Callable[[Json, float], bool]] = {
    "minimum": lambda value, bound: not _is_number(value) or value >= bound,
    "maximum": lambda value, bound: not _is_number(value) or value <= bound,
    "exclusiveMinimum": lambda value, bound: not _is_number(value) or value > bound,
    "exclusiveMaximum": lambda value, bound: not _is_number(value) or value < bound,
    "minLength": lambda value, bound: not _is_text(value) or len(value) >= bound,
    "maxLength": lambda value, bound: not _is_text(value) or len(value) <= bound,
    "minItems": lambda value, bound: not isinstance(value, list) or len(value) >= bound,
    "maxItems": lambda value, bound: not isinstance(value, list) or len(value) <= bound,
    "minProperties": lambda value, bound: not isinstance(value, dict) or len(value) >= bound,
    "maxProperties": lambda value, bound: not isinstance(value, dict) or len(value) <= bound,
}
