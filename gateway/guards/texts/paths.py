"""Where a text stands in an object, and objects with other texts there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.types import ChatRequest, Json, Native

Path = tuple[str | int, ...]

DEEPEST = 100
"""Levels of objects and lists; no real schema or document has more."""


def replaced(request: ChatRequest, texts: Mapping[Path, str]) -> ChatRequest:
    """A copy of ``request`` with other texts at these paths."""
    if request.native is not None:
        return _native_replaced(request, request.native, {path[1:]: text for path, text in texts.items()})
    fresh = {name: _put_all(getattr(request, str(name)), below) for name, below in _by_step(texts).items()}
    return replace(request, **{str(name): value for name, value in fresh.items()})


def _native_replaced(request: ChatRequest, own: Native, texts: Mapping[Path, str]) -> ChatRequest:
    """A native request with other texts at these paths, and its canonical form."""
    values = {
        # The input of a call is an object there, not JSON text.
        path: text if isinstance(_at(own.body, path), str) else json.loads(text)
        for path, text in texts.items()
    }
    fresh = own.read(_put_all(own.body, values))
    # Numbers hold no text, and may have been clipped since.
    changed = {name: value for name, value in fresh.params.items() if isinstance(value, str | list | Mapping)}
    return replace(
        request, messages=fresh.messages, params={**request.params, **changed}, native=fresh.native
    )


def _at(tree: Json, path: Path) -> Json:
    for step in path:
        tree = tree[step]
    return tree


def _put_all(tree: Json, values: Mapping[Path, Json]) -> Json:
    """``put`` for each of ``values``, with at most one copy of any object."""
    if () in values:
        return values[()]
    copy: Any = dict(tree) if isinstance(tree, Mapping) else list(tree)
    for step, below in _by_step(values).items():
        copy[step] = _put_all(copy[step], below)
    return tuple(copy) if isinstance(tree, tuple) else copy


def _by_step(values: Mapping[Path, Json]) -> dict[str | int, dict[Path, Json]]:
    below: dict[str | int, dict[Path, Json]] = {}
    for path, value in values.items():
        below.setdefault(path[0], {})[path[1:]] = value
    return below


def put(tree: Json, path: Path, value: Json) -> Json:
    """A copy of ``tree`` with ``value`` at ``path``; everything off the path is shared."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(tree, Mapping):
        return {**tree, step: put(tree[str(step)], rest, value)}
    copy = list(tree)
    copy[int(step)] = put(copy[int(step)], rest, value)
    return tuple(copy) if isinstance(tree, tuple) else copy
