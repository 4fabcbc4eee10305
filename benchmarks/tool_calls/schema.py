"""Whether a value fits a JSON schema: the keywords that the sets use, and a refusal of any other.

Written out so that what judges the engine's grammars shares no code with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}
_FORMATS = {
    "date": r"\d{4}-\d{2}-\d{2}",
    "email": r"[^@\s]+@[^@\s]+",
    "ipv4": r"\d{1,3}(\.\d{1,3}){3}",
}
_ANNOTATIONS = frozenset({"$defs", "description", "title"})


def fits(value: Any, schema: Any, root: Mapping[str, Any] | None = None) -> bool:
    """Raises ``ValueError`` for a keyword that is not known here."""
    if isinstance(schema, bool):
        return schema
    root = schema if root is None else root
    return all(_keyword(value, name, wanted, schema, root) for name, wanted in schema.items())


def _keyword(value: Any, name: str, wanted: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match name:
        case "type":
            return isinstance(value, _TYPES[wanted]) and (number or wanted not in ("number", "integer"))
        case "enum":
            return value in wanted
        case "const":
            return bool(value == wanted)
        case "$ref":
            return fits(value, root["$defs"][wanted.removeprefix("#/$defs/")], root)
        case "anyOf":
            return any(fits(value, one, root) for one in wanted)
        case "minimum":
            return not number or value >= wanted
        case "maximum":
            return not number or value <= wanted
        case "exclusiveMinimum":
            return not number or value > wanted
        case "pattern":
            return not isinstance(value, str) or re.search(wanted, value) is not None
        case "format":
            return not isinstance(value, str) or re.fullmatch(_FORMATS[wanted], value) is not None
        case "minItems":
            return not isinstance(value, list) or len(value) >= wanted
        case "maxItems":
            return not isinstance(value, list) or len(value) <= wanted
        case "prefixItems":
            return not isinstance(value, list) or all(
                fits(one, part, root) for one, part in zip(value, wanted, strict=False)
            )
        case "items":
            rest = value[len(schema.get("prefixItems", ())) :] if isinstance(value, list) else []
            return all(fits(one, wanted, root) for one in rest)
        case "properties":
            return not isinstance(value, dict) or all(
                fits(value[key], one, root) for key, one in wanted.items() if key in value
            )
        case "required":
            return not isinstance(value, dict) or all(key in value for key in wanted)
        case "additionalProperties":
            known = schema.get("properties", {})
            return not isinstance(value, dict) or all(
                fits(one, wanted, root) for key, one in value.items() if key not in known
            )
    if name not in _ANNOTATIONS:
        raise ValueError(f"{name!r} is not known to this judge of schemas")
    return True
