"""OpenAI's older Completions dialect: raw text in, raw text on (https://platform.openai.com/docs/api-reference/completions).

Inside the gateway its text travels as a chat delta's ``content``, so that stages need to know one form only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from gateway.policy.schema.limits import USUAL, RequestLimits
from gateway.types import ChatRequest, Chunk, Json
from gateway.wire import json_body
from gateway.wire.openai.chat import Sampling, request_from
from gateway.wire.openai.envelope import AnswerFormat, Choice
from gateway.wire.openai.events_to_chunks import read_chunks

PATH = "/completions"

Tokens = Annotated[json_body.Items[Annotated[int, Field(ge=0, le=2**53)]], Field(min_length=1)]


class CompletionBody(Sampling):
    prompt: (
        str
        | Annotated[json_body.Items[str], Field(min_length=1)]
        | Tokens
        | Annotated[json_body.Items[Tokens], Field(min_length=1)]
    )
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """0, with ``echo`` and ``logprobs``, asks how likely the prompt is."""
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    best_of: Annotated[int, Field(ge=0, le=20)] | None = None
    suffix: str | None = None


def read_request(data: bytes, limits: RequestLimits = USUAL) -> ChatRequest:
    """Raises ``BadRequest``."""
    raw = json_body.read_json(data, limits)
    return request_from(raw, json_body.check(CompletionBody, raw), limits, prompt=raw.get("prompt"))


def read_answer(raw: Mapping[str, Json]) -> list[Chunk]:
    """A whole answer, as a short stream: one chunk a choice, the usage on the last."""
    return read_chunks(raw, lambda choice: {"content": choice.get("text") or ""})


def body_choice(index: int, choice: Choice) -> dict[str, Json]:
    """A choice of a whole answer."""
    return {
        "index": index,
        "text": (choice.delta or {}).get("content") or "",
        "logprobs": choice.logprobs or None,
        "finish_reason": choice.finish_reason or None,
        **({} if choice.stop is None else {"stop_reason": choice.stop}),
        **(choice.choice or {}),
    }


def event_choice(chunk: Chunk) -> dict[str, Json]:
    """A choice of one event."""
    return {
        "index": chunk.index,
        "text": (chunk.delta or {}).get("content") or "",
        "logprobs": chunk.logprobs,
        "finish_reason": chunk.finish_reason,
        **({} if chunk.stop is None else {"stop_reason": chunk.stop}),
        **(chunk.choice or {}),
    }


FORMAT = AnswerFormat("text_completion", "text_completion", "cmpl-", body_choice, event_choice)
