"""OpenAI's wire format of responses, whole and in chunks.

https://platform.openai.com/docs/api-reference/chat/object, …/chat-streaming and …/completions/object.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import orjson

from engine.core.request import FinishReason
from engine.server.logprobs import DecodedLogprobs, DecodedToken
from engine.server.tools_parser import CallDelta

Finish = FinishReason | Literal["tool_calls"]

DONE = b"data: [DONE]\n\n"


@dataclass(slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that the prefix cache had."""
    reasoning_tokens: int | None = None
    """Completion tokens that are reasoning; ``None`` where there can be none."""

    def wire(self) -> dict[str, Any]:
        counts = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        if self.reasoning_tokens is not None:
            counts["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return counts


@dataclass(slots=True)
class ChoiceDelta:
    """More of one choice; the sum of a choice's deltas is a delta as well."""

    index: int
    text: str
    finish: Finish | None
    logprobs: list[DecodedLogprobs] | None = None
    """``None`` where not requested."""
    calls: list[CallDelta] = field(default_factory=list)
    """More of one or several tool calls, in order."""
    stop: str | int | None = None
    """With ``finish``: the caller's stop string or token that ended it, as in vLLM; ``None`` for any other end."""
    reasoning: str = ""
    """Text that comes before ``text``."""

    def add(self, more: ChoiceDelta) -> None:
        self.text += more.text
        self.reasoning += more.reasoning
        self.finish = more.finish
        self.stop = more.stop
        if more.logprobs is not None:
            self.logprobs = (self.logprobs or []) + more.logprobs
        for call in more.calls:
            if self.calls and self.calls[-1].index == call.index:
                self.calls[-1].arguments += call.arguments
            else:
                self.calls.append(call)


class ResponseWriter:
    """What all chunks of a response have in common; the two APIs add the rest."""

    prefix: str
    object: str
    chunk_object: str

    def __init__(self, model: str, *, include_usage: bool) -> None:
        self.id = f"{self.prefix}-{secrets.token_hex(12)}"
        self.model = model
        self._common = {"id": self.id, "created": int(time.time()), "model": model}
        self._no_usage: dict[str, Any] = {"usage": None} if include_usage else {}

    def whole(self, pieces: Sequence[ChoiceDelta], usage: Usage) -> bytes:
        choices = [self._choice(piece) for piece in pieces]
        body = {**self._common, "object": self.object, "choices": choices, "usage": usage.wire()}
        return orjson.dumps(body)

    def opening(self, index: int) -> bytes:
        """The chunk before the first text of a choice."""
        raise NotImplementedError

    def chunk(self, piece: ChoiceDelta) -> bytes:
        raise NotImplementedError

    def closing(self, usage: Usage) -> bytes:
        """The chunk that ``stream_options.include_usage`` asks for."""
        return self._event([], {"usage": usage.wire()})

    def _choice(self, piece: ChoiceDelta) -> dict[str, Any]:
        raise NotImplementedError

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> bytes:
        return event({**self._common, "object": self.chunk_object, "choices": choices, **usage})


class ChatResponseWriter(ResponseWriter):
    prefix = "chatcmpl"
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, index: int) -> bytes:
        return self._delta(index, {"role": "assistant", "content": "", "refusal": None}, None)

    def chunk(self, piece: ChoiceDelta) -> bytes:
        data = b""
        if piece.reasoning:
            data = self._delta(piece.index, {"reasoning_content": piece.reasoning}, None)
        if piece.text or piece.logprobs:
            data += self._delta(piece.index, {"content": piece.text}, None, _chat_logprobs(piece.logprobs))
        if piece.calls:
            data += self._delta(
                piece.index, {"tool_calls": [_call_delta(call) for call in piece.calls]}, None
            )
        if piece.finish is None:
            return data
        return data + self._delta(piece.index, {}, piece.finish, stop={"stop_reason": piece.stop})

    def _delta(
        self,
        index: int,
        delta: dict[str, Any],
        finish: Finish | None,
        logprobs: dict[str, Any] | None = None,
        stop: Mapping[str, str | int | None] = MappingProxyType({}),
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish, **stop}
        return self._event([choice], self._no_usage)

    def _choice(self, piece: ChoiceDelta) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": piece.text, "refusal": None}
        if piece.reasoning:
            message["reasoning_content"] = piece.reasoning
        if piece.calls:
            message["content"] = piece.text or None
            message["tool_calls"] = [_call(call) for call in piece.calls]
        return {
            "index": piece.index,
            "message": message,
            "logprobs": _chat_logprobs(piece.logprobs),
            "finish_reason": piece.finish,
            "stop_reason": piece.stop,
        }


class CompletionResponseWriter(ResponseWriter):
    prefix = "cmpl"
    object = "text_completion"
    chunk_object = "text_completion"

    def opening(self, index: int) -> bytes:
        return b""

    def chunk(self, piece: ChoiceDelta) -> bytes:
        return self._event([self._choice(piece)], self._no_usage)

    def _choice(self, piece: ChoiceDelta) -> dict[str, Any]:
        return {
            "index": piece.index,
            "text": piece.text,
            "logprobs": _text_logprobs(piece.logprobs),
            "finish_reason": piece.finish,
            "stop_reason": piece.stop,
        }


def _call(call: CallDelta) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _call_delta(call: CallDelta) -> dict[str, Any]:
    """…/chat-streaming#chat-streaming-choices-delta-tool_calls"""
    if call.id is None:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    return {"index": call.index, **_call(call)}


def _chat_logprobs(logprobs: list[DecodedLogprobs] | None) -> dict[str, Any] | None:
    """…/chat/object#chat-object-choices-logprobs"""
    if logprobs is None:
        return None
    content: list[dict[str, Any]] = []
    reasoning: list[dict[str, Any]] = []
    for one in logprobs:
        token = {**_decoded(one.chosen), "top_logprobs": [_decoded(other) for other in one.top]}
        (content if one.offset >= 0 else reasoning).append(token)
    found: dict[str, Any] = {"content": content, "refusal": None}
    # As DeepSeek has it: https://api-docs.deepseek.com/api/create-chat-completion
    return {**found, "reasoning_content": reasoning} if reasoning else found


def _decoded(token: DecodedToken) -> dict[str, Any]:
    value = None if token.bytes is None else list(token.bytes)
    return {"token": token.text, "logprob": token.logprob, "bytes": value}


def _text_logprobs(logprobs: list[DecodedLogprobs] | None) -> dict[str, Any] | None:
    """…/completions/object#completions-object-choices-logprobs; offsets count from the start of the choice's text."""
    if logprobs is None:
        return None
    return {
        "tokens": [one.chosen.text for one in logprobs],
        "token_logprobs": [one.chosen.logprob for one in logprobs],
        # The chosen token is always included, even beyond the requested number.
        "top_logprobs": [
            None
            if one.chosen.logprob is None
            else {token.text: token.logprob for token in (*one.top, one.chosen)}
            for one in logprobs
        ],
        "text_offset": [one.offset for one in logprobs],
    }


def event(data: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + orjson.dumps(data) + b"\n\n"
