"""vLLM's ``/tokenize`` and ``/detokenize``, which the bundled engine has, too
(https://docs.vllm.ai/en/latest/serving/openai_compatible_server.html)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from gateway.policy.schema.limits import USUAL, RequestLimits
from gateway.types import ChatRequest
from gateway.wire import json_body
from gateway.wire.openai.chat import Lenient, Message


class TokenizeBody(Lenient):
    model: Annotated[str, Field(min_length=1)]
    prompt: str | None = None
    messages: Annotated[json_body.Items[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("send either 'prompt' or 'messages'")
        return self


class DetokenizeBody(Lenient):
    model: Annotated[str, Field(min_length=1)]
    tokens: json_body.Items[Annotated[int, Field(ge=0)]]


_OWN = frozenset({"model", "prompt", "messages"})


def read_tokenize(data: bytes, limits: RequestLimits = USUAL) -> ChatRequest:
    """Raises ``BadRequest``."""
    raw = json_body.read_json(data, limits)
    known = json_body.check(TokenizeBody, raw)
    return ChatRequest(
        model=known.model,
        messages=None if known.messages is None else tuple(raw["messages"]),
        prompt=known.prompt,
        params=_others(raw),
        api="tokenize",
    )


def read_detokenize(data: bytes, limits: RequestLimits = USUAL) -> ChatRequest:
    """Raises ``BadRequest``. The ids are a parameter: no guard could read them."""
    raw = json_body.read_json(data, limits)
    known = json_body.check(DetokenizeBody, raw)
    return ChatRequest(model=known.model, prompt="", params=_others(raw), api="detokenize")


def _others(raw: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name not in _OWN}
