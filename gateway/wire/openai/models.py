"""OpenAI's list of models (https://platform.openai.com/docs/api-reference/models)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.types import Json


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model that a caller may use, under one of its names."""

    id: str
    created: int
    """Unix time."""
    owner: str
    """The backend that serves it."""
    state: str | None = None
    """Of a model of an engine with several: whether it is loaded."""
    parent: str | None = None
    """The model that an adapter adapts, as vLLM says it."""


class ModelCatalogue(Protocol):
    """How a dialect lists models; the dialects' modules themselves are the implementations."""

    def write_list(self, models: Sequence[ListedModel], query: Mapping[str, str]) -> Json:
        """``query`` is the request's: a dialect may list page by page. Raises ``BadRequest``."""
        ...

    def write_one(self, model: ListedModel) -> Json: ...


def write_list(models: Sequence[ListedModel], query: Mapping[str, str]) -> Json:
    """All at once: OpenAI's list has no pages."""
    return {"object": "list", "data": [write_one(model) for model in models]}


def write_one(model: ListedModel) -> Json:
    listed: Json = {"id": model.id, "object": "model", "created": model.created, "owned_by": model.owner}
    if model.parent is not None:
        listed |= {"root": model.id, "parent": model.parent}
    return listed if model.state is None else {**listed, "status": {"value": model.state}}
