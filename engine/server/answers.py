"""OpenAI's wire format of answers, whole and in chunks.

https://platform.openai.com/docs/api-reference/chat/object, …/chat-streaming and …/completions/object.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from engine.core.request import FinishReason

DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int = 0

    def wire(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }


class Answer:
    """The parts that every chunk of one answer has in common; the two dialects fill in the rest."""

    prefix: str
    object: str
    chunk_object: str

    def __init__(self, model: str, *, include_usage: bool) -> None:
        self.id = f"{self.prefix}-{secrets.token_hex(12)}"
        self._common = {"id": self.id, "created": int(time.time()), "model": model}
        self._no_usage: dict[str, Any] = {"usage": None} if include_usage else {}

    def whole(self, texts: Sequence[tuple[str, FinishReason]], usage: Usage) -> bytes:
        choices = [self._choice(index, text, finish) for index, (text, finish) in enumerate(texts)]
        body = {**self._common, "object": self.object, "choices": choices, "usage": usage.wire()}
        return orjson.dumps(body)

    def opening(self, index: int) -> bytes:
        """What comes before the first text of a choice."""
        raise NotImplementedError

    def chunk(self, index: int, text: str, finish: FinishReason | None) -> bytes:
        raise NotImplementedError

    def closing(self, usage: Usage) -> bytes:
        """The chunk that ``stream_options.include_usage`` asks for."""
        return self._event([], {"usage": usage.wire()})

    def _choice(self, index: int, text: str, finish: FinishReason) -> dict[str, Any]:
        raise NotImplementedError

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> bytes:
        return event({**self._common, "object": self.chunk_object, "choices": choices, **usage})


class ChatAnswer(Answer):
    prefix = "chatcmpl"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, index: int) -> bytes:
        return self._delta(index, {"role": "assistant", "content": ""}, None)

    def chunk(self, index: int, text: str, finish: FinishReason | None) -> bytes:
        if finish is None:
            return self._delta(index, {"content": text}, None)
        words = self._delta(index, {"content": text}, None) if text else b""
        return words + self._delta(index, {}, finish)

    def _delta(self, index: int, delta: dict[str, Any], finish: FinishReason | None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._event([choice], self._no_usage)

    def _choice(self, index: int, text: str, finish: FinishReason) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": finish}


class CompletionAnswer(Answer):
    prefix = "cmpl"
    object = "text_completion"
    chunk_object = "text_completion"

    def opening(self, index: int) -> bytes:
        return b""

    def chunk(self, index: int, text: str, finish: FinishReason | None) -> bytes:
        choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
        return self._event([choice], self._no_usage)

    def _choice(self, index: int, text: str, finish: FinishReason) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"
