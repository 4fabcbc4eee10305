"""Scores of pairs of texts, as vLLM has them (https://docs.vllm.ai/en/latest/models/pooling_models.html)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.errors import BadRequest
from gateway.policy.schema.limits import USUAL, RequestLimits
from gateway.types import ChatRequest
from gateway.wire import json_body
from gateway.wire.openai.chat import Lenient

_Texts = str | Annotated[json_body.Items[str], Field(min_length=1)]


class ScoreBody(Lenient):
    model: Annotated[str, Field(min_length=1)]
    text_1: _Texts
    """One, or as many as the others."""
    text_2: _Texts


_OWN = frozenset({"model", "text_1"})
_BOUNDS = {"text_1": "prompts", "text_2": "prompts"}


def read_request(data: bytes, limits: RequestLimits = USUAL) -> ChatRequest:
    """Raises ``BadRequest``. The second texts stay where they are, among the parameters."""
    raw = json_body.read_json(data, limits, bounds=_BOUNDS)
    known = json_body.check(ScoreBody, raw)
    one, other = (1 if isinstance(texts, str) else len(texts) for texts in (known.text_1, known.text_2))
    if one not in (1, other):
        raise BadRequest(
            f"'text_1' has {one} texts, and 'text_2' has {other}: 'text_1' must have one, or as many.",
            param="text_1",
        )
    return ChatRequest(
        model=known.model,
        prompt=raw["text_1"],
        params={name: value for name, value in raw.items() if name not in _OWN},
        api="score",
    )
