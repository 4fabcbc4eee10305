"""Navigating the schema: the type at a key path, and all keys."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel

from gateway.policy.problems import KeyPath
from gateway.policy.schema import Policy


class Located(NamedTuple):
    path: KeyPath
    """The key path that an operator sees, without pydantic's marks for union members and keys."""
    owner: type[BaseModel] | None
    """The type that has, or lacks, the last key, where that is a model."""


def locate(loc: tuple[str | int, ...], whole: type[BaseModel] = Policy) -> Located:
    """Pydantic's ``loc`` as a key path of the file, of which ``whole`` is the type."""
    path: list[str | int] = []
    owner: type[BaseModel] | None = None
    here: Any = whole
    for part in loc:
        if part == "[key]":
            continue
        members = models_in(here)
        if len(members) > 1:
            here = next((member for member in members if kind_of(member) == part), None)
            continue
        path.append(part)
        owner = members[0] if members else None
        if owner is not None:
            field = owner.model_fields.get(str(part))
            here = field.annotation if field else None
        else:
            arguments = get_args(_bare(here))
            here = arguments[-1 if get_origin(_bare(here)) is dict else 0] if arguments else None
    return Located(tuple(path), owner)


def keys(model: type[BaseModel] = Policy, prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every key an operator may write, as ``backends.<name>.base_url`` or ``keys[].id``, with its owner."""
    for name, field in model.model_fields.items():
        path = f"{prefix}.{name}" if prefix else name
        yield path, model
        inner = _bare(field.annotation)
        if get_origin(inner) is dict:
            path, inner = f"{path}.<name>", get_args(inner)[1]
        elif get_origin(inner) is tuple:
            path, inner = f"{path}[]", get_args(inner)[0]
        for member in models_in(inner):
            yield from keys(member, path)


def models_in(annotation: Any) -> tuple[type[BaseModel], ...]:
    """The models that a type is, or is a union of."""
    annotation = _bare(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(model for member in get_args(annotation) for model in models_in(member))
    return (annotation,) if isinstance(annotation, type) and issubclass(annotation, BaseModel) else ()


def kind_of(model: type[BaseModel]) -> str | None:
    """The value of ``kind`` that selects this model of a union."""
    field = model.model_fields.get("kind")
    return get_args(field.annotation)[0] if field else None


def _bare(annotation: Any) -> Any:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return annotation
