"""OpenAI's ``/audio/speech`` (https://platform.openai.com/docs/api-reference/audio/createSpeech)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from gateway.policy.schema.limits import USUAL, RequestLimits
from gateway.types import ChatRequest
from gateway.wire import json_body
from gateway.wire.openai.chat import Lenient


class SpeechBody(Lenient):
    model: Annotated[str, Field(min_length=1)]
    input: Annotated[str, Field(min_length=1)]
    voice: str | dict[str, Any] | None = None
    instructions: str | None = None
    response_format: str | None = None
    speed: Annotated[float, Field(gt=0)] | None = None
    stream_format: Literal["sse", "audio"] | None = None


_OWN = frozenset({"model", "input"})


def read_request(data: bytes, limits: RequestLimits = USUAL) -> ChatRequest:
    """Raises ``BadRequest``."""
    raw = json_body.read_json(data, limits)
    known = json_body.check(SpeechBody, raw)
    return ChatRequest(
        model=known.model,
        prompt=known.input,
        stream=known.stream_format == "sse",
        params={name: value for name, value in raw.items() if name not in _OWN},
        api="speech",
    )
