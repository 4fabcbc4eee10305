"""Where a schema lets so many properties come next that llguidance may refuse to follow.

An object whose properties are optional has alternatives for each of them open at once, and a matcher only finds out
that they are too many when it gets there. Each such place of a schema is therefore made a small schema of its own, and
a text that leads to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

Schema = Mapping[str, Any]

_MANY = 250
"""Optional properties from which a place is worth the trouble: half as many as may be open."""
_DEPTH = 8
"""Choices and references, one in another, that are followed."""
_STEPS = 5_000
"""That all of it may take, some 20 ms: of what is not looked at, a matcher finds out when it gets there."""
_NULL = {"type": "null"}


@dataclass(frozen=True, slots=True)
class _Run:
    """Properties of an object of which none has to come, and those that have to before and behind them, if any."""

    names: list[str]
    before: str | None
    behind: str | None
    closed: bool

    def schema(self) -> dict[str, Any]:
        needed = [name for name in (self.before, self.behind) if name is not None]
        first = [] if self.before is None else [self.before]
        last = [] if self.behind is None else [self.behind]
        properties = dict.fromkeys((*first, *self.names, *last), _NULL)
        found = {"type": "object", "properties": properties, "required": needed}
        return {**found, "additionalProperties": False} if self.closed else found

    def text(self) -> str:
        return "{" if self.before is None else f"{{{json.dumps(self.before)}:null"


def crowds(schema: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """(schema, text): behind the text all is open that may be open at a place of ``schema``."""
    steps = iter(range(_STEPS))
    for place in _places(schema):
        objects = list(_objects(place, schema, _DEPTH, steps))
        if "properties" in place:
            for run in (run for runs in objects for run in runs if len(run.names) >= _MANY):
                yield run.schema(), run.text()
        first = [run for runs in objects for run in runs[:1] if run.before is None]
        if len(first) > 1 and sum(len(run.names) for run in first) >= _MANY:
            yield {"anyOf": [run.schema() for run in first]}, "{"


def _places(schema: Any) -> Iterator[Schema]:
    """All parts of a schema that are objects of JSON."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, Mapping):
            yield part
            left += part.values()
        elif isinstance(part, list):
            left += part


def _objects(schema: Any, root: Any, depth: int, steps: Iterator[int]) -> Iterator[list[_Run]]:
    """Of each object that may stand there, in order."""
    if not isinstance(schema, Mapping) or not depth or next(steps, None) is None:
        return
    for name in ("anyOf", "oneOf"):
        for one in _listed(schema.get(name)):
            yield from _objects(one, root, depth - 1, steps)
    if isinstance(place := schema.get("$ref"), str) and place.startswith("#/"):
        found = root
        for step in place[2:].split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
        yield from _objects(found, root, depth - 1, steps)
    parts = [schema, *(part for part in _listed(schema.get("allOf")) if isinstance(part, Mapping))]
    names = {name: None for part in parts for name in _named(part.get("properties"))}
    needed = {name for part in parts for name in _listed(part.get("required")) if isinstance(name, str)}
    closed = any(part.get("additionalProperties") is False for part in parts)
    groups = [(has_to, list(run)) for has_to, run in groupby(names, lambda name: name in needed)]
    edges = [None, *(run for _, run in groups), None]
    runs = [
        _Run(run, before[-1] if before else None, behind[0] if behind else None, closed)
        for (has_to, run), before, behind in zip(groups, edges, edges[2:], strict=False)
        if not has_to
    ]
    if runs:
        yield runs


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _named(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
