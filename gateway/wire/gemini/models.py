"""Google's list of models (https://ai.google.dev/api/models)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.errors import BadRequest
from gateway.types import Json
from gateway.wire.openai.models import ListedModel

PAGE, LARGEST_PAGE = 50, 1000
"""Models on a page where the caller does not say how many, and at most."""
METHODS = ("generateContent", "countTokens", "embedContent", "batchEmbedContents")


def write_list(models: Sequence[ListedModel], query: Mapping[str, str]) -> Json:
    """A page: ``pageSize`` models from ``pageToken`` on. Raises ``BadRequest``."""
    size = min(_number(query.get("pageSize"), "pageSize") or PAGE, LARGEST_PAGE)
    start = _number(query.get("pageToken"), "pageToken")
    page = models[start : start + size]
    more = {"nextPageToken": str(start + size)} if start + size < len(models) else {}
    return {"models": [write_one(model) for model in page], **more}


def write_one(model: ListedModel) -> Json:
    """Google's fields that are unknown of these models are left out, as Google does."""
    return {
        "name": f"models/{model.id}",
        "baseModelId": model.id,
        "version": "1",
        "displayName": model.id,
        "supportedGenerationMethods": [*METHODS],
    }


def _number(text: str | None, name: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise BadRequest(f"'{name}' should be a number, or left out.", param=name, code="invalid_value")
    return int(text)
