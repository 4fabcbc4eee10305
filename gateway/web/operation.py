"""One method of one path: what it takes and gives, by the types that check it. ``/openapi.json`` is made of these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel

JSON = "application/json"
FORM = "multipart/form-data"
EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    """As Starlette's routes have it; ``{name:path}`` holds slashes."""
    name: str
    """Its ``operationId``."""
    summary: str
    tag: str
    answers: Mapping[str, type[BaseModel] | None] = field(default_factory=lambda: {JSON: None})
    """By content type; None is any object of JSON, or any text."""
    status: int = 200
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    errors: tuple[int, ...] = ()
    """Besides those that every path has."""
    unready: type[BaseModel] | None = None
    """What a 503 has, where that is no error."""
    scope: str | None = "inference"
    """Of the key that it needs: ``inference``, ``admin`` or ``metrics``; None where it needs none."""
    takes: str = JSON
    """The content type of ``body``."""
