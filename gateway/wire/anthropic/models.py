"""Anthropic's list of models (https://platform.claude.com/docs/en/api/models-list)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from gateway.errors import BadRequest
from gateway.types import Json
from gateway.wire.openai.models import ListedModel

PAGE, LARGEST_PAGE = 20, 1000
"""Models on a page where the caller does not say how many, and at most."""


def write_list(models: Sequence[ListedModel], query: Mapping[str, str]) -> Json:
    """A page: ``limit`` models after ``after_id``, or before ``before_id``. Raises ``BadRequest``."""
    limit = _limit(query.get("limit"))
    start, end = 0, len(models)
    if "after_id" in query:
        start = _index(models, query["after_id"], "after_id") + 1
    if "before_id" in query:
        end = _index(models, query["before_id"], "before_id")
    found = models[start:end]
    backwards = "before_id" in query and "after_id" not in query
    page = found[-limit:] if backwards else found[:limit]
    return {
        "data": [write_one(model) for model in page],
        "first_id": page[0].id if page else None,
        "has_more": len(page) < len(found),
        "last_id": page[-1].id if page else None,
    }


def write_one(model: ListedModel) -> Json:
    """Anthropic's fields that are unknown of these models are null."""
    return {
        "type": "model",
        "id": model.id,
        "display_name": model.id,
        "created_at": datetime.fromtimestamp(model.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "deprecated_at": None,
        "retires_at": None,
        "line": None,
        "capabilities": None,
        "max_input_tokens": None,
        "max_tokens": None,
    }


def _limit(text: str | None) -> int:
    if text is None:
        return PAGE
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:5]) <= LARGEST_PAGE):
        raise BadRequest(
            f"'limit' should be a number from 1 to {LARGEST_PAGE}.", param="limit", code="invalid_value"
        )
    return int(text)


def _index(models: Sequence[ListedModel], wanted: str, name: str) -> int:
    for index, model in enumerate(models):
        if model.id == wanted:
            return index
    raise BadRequest(
        f"'{name}' should be the id of a model that was listed; '{wanted}' is none.",
        param=name,
        code="invalid_value",
    )
