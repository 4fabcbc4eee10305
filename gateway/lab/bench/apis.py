"""The APIs that can be measured: how a request is made in each, and what its answer says.

``event`` is called for every piece of a stream, and decides what the client can take.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gateway.lab.bench.conversations import Message


class Told:
    """What an answer has said so far, beside its text."""

    __slots__ = ("finish", "output_tokens", "prompt_tokens")

    def __init__(self) -> None:
        self.finish = ""
        """Why it ended; empty until it says so."""
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None


class ApiError(Exception):
    """The answer is, or turns into, an error: its code, or type, and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Api:
    """One dialect. ``path`` follows the base URL."""

    name: ClassVar[str]
    path: ClassVar[str]

    def body(
        self, model: str, messages: Sequence[Message], max_tokens: int | None, *, stream: bool
    ) -> dict[str, Any]:
        raise NotImplementedError

    def headers(self, key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"} if key else {}

    def event(self, value: Mapping[str, Any], told: Told) -> str:
        """The text in one event of a stream, that of a tool call or of thoughts included; raises ``ApiError``."""
        raise NotImplementedError

    def whole(self, value: Mapping[str, Any], told: Told) -> str:
        """The text of an answer that is not streamed; raises ``ApiError``."""
        raise NotImplementedError


class Chat(Api):
    name = "chat"
    path = "chat/completions"

    def body(
        self, model: str, messages: Sequence[Message], max_tokens: int | None, *, stream: bool
    ) -> dict[str, Any]:
        body: dict[str, Any] = {"model": model, "messages": messages}
        return _openai(body, max_tokens, stream)

    def event(self, value: Mapping[str, Any], told: Told) -> str:
        choices = value.get("choices")
        if not choices:
            _check(value, told)
            return ""
        choice = choices[0]
        if choice.get("finish_reason"):
            told.finish = choice["finish_reason"]
            _check(value, told)
        delta = choice["delta"]
        if content := delta.get("content"):
            return str(content)
        if "tool_calls" in delta:
            return "".join(_called(call) for call in delta["tool_calls"] or ())
        return str(delta.get("reasoning_content") or delta.get("reasoning") or delta.get("refusal") or "")

    def whole(self, value: Mapping[str, Any], told: Told) -> str:
        _check(value, told)
        choice = value["choices"][0]
        told.finish = choice.get("finish_reason") or ""
        message = choice["message"]
        called = "".join(_called(call) for call in message.get("tool_calls") or ())
        return str(message.get("content") or message.get("reasoning_content") or called)


class Completions(Api):
    name = "completions"
    path = "completions"

    def body(
        self, model: str, messages: Sequence[Message], max_tokens: int | None, *, stream: bool
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": model,
            "prompt": "\n\n".join(str(one["content"]) for one in messages),
        }
        return _openai(body, max_tokens, stream)

    def event(self, value: Mapping[str, Any], told: Told) -> str:
        if value.get("usage") or "error" in value:
            _check(value, told)
        if not (choices := value.get("choices")):
            return ""
        if choices[0].get("finish_reason"):
            told.finish = choices[0]["finish_reason"]
        return choices[0].get("text") or ""

    def whole(self, value: Mapping[str, Any], told: Told) -> str:
        return self.event(value, told)


class Messages(Api):
    name = "messages"
    path = "messages"

    def headers(self, key: str) -> dict[str, str]:
        return {"anthropic-version": "2023-06-01", **({"x-api-key": key} if key else {})}

    def body(
        self, model: str, messages: Sequence[Message], max_tokens: int | None, *, stream: bool
    ) -> dict[str, Any]:
        system = [str(one["content"]) for one in messages if one["role"] == "system"]
        return {
            "model": model,
            "max_tokens": max_tokens or 4096,  # which this API cannot do without
            "messages": [one for one in messages if one["role"] != "system"],
            **({"system": "\n\n".join(system)} if system else {}),
            **({"stream": True} if stream else {}),
        }

    def event(self, value: Mapping[str, Any], told: Told) -> str:
        match value.get("type"):
            case "content_block_delta":
                delta = value["delta"]
                return delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
            case "message_start":
                _anthropic_usage(value["message"].get("usage"), told)
            case "message_delta":
                told.finish = value["delta"].get("stop_reason") or told.finish
                _anthropic_usage(value.get("usage"), told)
            case "message_stop":
                told.finish = told.finish or "end_turn"
            case "error":
                _check(value, told)
        return ""

    def whole(self, value: Mapping[str, Any], told: Told) -> str:
        if value.get("type") == "error":
            _check(value, told)
        told.finish = value.get("stop_reason") or ""
        _anthropic_usage(value.get("usage"), told)
        return "".join(part.get("text") or part.get("thinking") or "" for part in value["content"])


APIS: Mapping[str, Api] = {api.name: api for api in (Chat(), Completions(), Messages())}


def error_in(value: Any) -> tuple[str, str]:
    """Code and message of an error's body, of any of these APIs."""
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, dict):
        return str(error.get("code") or error.get("type") or ""), str(error.get("message") or "")
    message = value.get("message") or value.get("detail") if isinstance(value, dict) else None
    return "", str(error or message or "")


def _openai(body: dict[str, Any], max_tokens: int | None, stream: bool) -> dict[str, Any]:
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def _called(call: Mapping[str, Any]) -> str:
    function = call.get("function") or {}
    return f"{function.get('name') or ''}{function.get('arguments') or ''}"


def _check(value: Mapping[str, Any], told: Told) -> None:
    """Note the usage, and raise the error that is in it."""
    if value.get("error"):
        raise ApiError(*error_in(value))
    if usage := value.get("usage"):
        told.prompt_tokens = usage.get("prompt_tokens", told.prompt_tokens)
        told.output_tokens = usage.get("completion_tokens", told.output_tokens)


def _anthropic_usage(usage: Mapping[str, Any] | None, told: Told) -> None:
    if not usage:
        return
    if (fresh := usage.get("input_tokens")) is not None:
        cached = (usage.get("cache_read_input_tokens") or 0) + (usage.get("cache_creation_input_tokens") or 0)
        told.prompt_tokens = fresh + cached
    told.output_tokens = usage.get("output_tokens", told.output_tokens)
