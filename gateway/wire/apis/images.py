"""OpenAI's ``/images/generations`` (https://platform.openai.com/docs/api-reference/images/create)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.policy.schema.limits import USUAL, RequestLimits
from gateway.types import ChatRequest
from gateway.wire import json_body
from gateway.wire.openai.chat import Lenient

Figure = Annotated[int, Field(ge=0, le=100)]


class ImageBody(Lenient):
    model: Annotated[str, Field(min_length=1)]
    prompt: Annotated[str, Field(min_length=1)]
    n: Annotated[int, Field(ge=1, le=100)] | None = None
    quality: Annotated[str, Field(max_length=40)] | None = None
    size: Annotated[str, Field(max_length=40)] | None = None
    partial_images: Figure | None = None
    stream: bool | None = None


_OWN = frozenset({"model", "prompt"})


def read_request(data: bytes, limits: RequestLimits = USUAL) -> ChatRequest:
    """Raises ``BadRequest``."""
    raw = json_body.read_json(data, limits)
    known = json_body.check(ImageBody, raw)
    return ChatRequest(
        model=known.model,
        prompt=known.prompt,
        stream=bool(known.stream),
        params={name: value for name, value in raw.items() if name not in _OWN},
        api="image_generation",
    )
