"""Objects of a schema with so many optional properties that llguidance may exceed its limits.

An object with optional properties has an alternative open for each of them, and a matcher notices that there are too
many only when it reaches the object. For each such object this makes a small schema of its own, and a text that leads
to the point where all alternatives are open, so that a grammar can be rejected before it is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

Schema = Mapping[str, Any]

_MIN_OPTIONAL = 250
"""Consecutive optional properties from which an object is checked: half as many as may be open."""
_DEPTH = 8
"""Nested choices and references that are followed."""
_STEPS = 5_000
"""Subschemas that are visited in all, some 20 ms; what lies beyond, a matcher notices when it gets there."""
_NULL = {"type": "null"}


@dataclass(frozen=True, slots=True)
class _OptionalRun:
    """Consecutive optional properties of an object, and the required ones before and after them, if any."""

    names: list[str]
    before: str | None
    after: str | None
    closed: bool

    def schema(self) -> dict[str, Any]:
        needed = [name for name in (self.before, self.after) if name is not None]
        first = [] if self.before is None else [self.before]
        last = [] if self.after is None else [self.after]
        properties = dict.fromkeys((*first, *self.names, *last), _NULL)
        found = {"type": "object", "properties": properties, "required": needed}
        return {**found, "additionalProperties": False} if self.closed else found

    def text(self) -> str:
        return "{" if self.before is None else f"{{{json.dumps(self.before)}:null"


def wide_objects(schema: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """(schema, text): after the text all alternatives are open that one object of ``schema`` can have open."""
    steps = iter(range(_STEPS))
    for subschema in _subschemas(schema):
        objects = list(_objects(subschema, schema, _DEPTH, steps))
        if "properties" in subschema:
            for run in (run for runs in objects for run in runs if len(run.names) >= _MIN_OPTIONAL):
                yield run.schema(), run.text()
        first = [run for runs in objects for run in runs[:1] if run.before is None]
        if len(first) > 1 and sum(len(run.names) for run in first) >= _MIN_OPTIONAL:
            yield {"anyOf": [run.schema() for run in first]}, "{"


def _subschemas(schema: Any) -> Iterator[Schema]:
    """All subschemas that are JSON objects."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            yield part
            left += part.values()
        elif isinstance(part, list):
            left += part


def _objects(schema: Any, root: Any, depth: int, steps: Iterator[int]) -> Iterator[list[_OptionalRun]]:
    """The optional runs of each object that the subschema may be, in order."""
    if not isinstance(schema, Mapping) or not depth or next(steps, None) is None:
        return
    for name in ("anyOf", "oneOf"):
        for one in _as_list(schema.get(name)):
            yield from _objects(one, root, depth - 1, steps)
    if isinstance(pointer := schema.get("$ref"), str) and pointer.startswith("#/"):
        found = root
        for step in pointer[2:].split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
        yield from _objects(found, root, depth - 1, steps)
    parts = [schema, *(part for part in _as_list(schema.get("allOf")) if isinstance(part, Mapping))]
    names = {name: None for part in parts for name in _as_mapping(part.get("properties"))}
    needed = {name for part in parts for name in _as_list(part.get("required")) if isinstance(name, str)}
    closed = any(part.get("additionalProperties") is False for part in parts)
    groups = [(required, list(run)) for required, run in groupby(names, lambda name: name in needed)]
    edges = [None, *(run for _, run in groups), None]
    runs = [
        _OptionalRun(run, before[-1] if before else None, after[0] if after else None, closed)
        for (required, run), before, after in zip(groups, edges, edges[2:], strict=False)
        if not required
    ]
    if runs:
        yield runs


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
