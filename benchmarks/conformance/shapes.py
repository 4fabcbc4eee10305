"""Our own cases: answers and errors in both dialects, whole and streamed, from each kind of backend, as published."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from anthropic.types import ErrorResponse, Message, MessageTokensCount, RawMessageStreamEvent
from openai.types import Completion, CompletionUsage, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from benchmarks.conformance.backends import DEMO, SCRIPTED
from benchmarks.conformance.providers import openai
from benchmarks.conformance.published import Wrong, fits
from benchmarks.conformance.report import Outcome
from benchmarks.conformance.stack import Stack

Json = dict[str, Any]


def run(stack: Stack) -> Iterator[Outcome]:
    for model in (DEMO, *(provider.model for provider in SCRIPTED)):
        failures = []
        for case in CASES:
            try:
                case.run(stack, model)
            except Wrong as wrong:
                failures.append(f"{case.name}: {wrong}")
        yield Outcome("shapes", model, len(CASES) - len(failures), len(CASES), tuple(failures))
    try:
        vector = _post(stack, "/v1/embeddings", {"model": openai.EMBEDDER, "input": ["a", "b"]})
        fits(CreateEmbeddingResponse, vector)
        yield Outcome("shapes", openai.EMBEDDER, 1, 1)
    except Wrong as wrong:
        yield Outcome("shapes", openai.EMBEDDER, 0, 1, (f"embeddings: {wrong}",))


@dataclass(frozen=True)
class Case:
    name: str
    path: str
    asked: Json
    check: Callable[[Any], None]
    """Raises ``Wrong``. It is given the body, or of a stream the data of its events."""
    headers: Mapping[str, str] = field(default_factory=dict)

    def run(self, stack: Stack, model: str) -> None:
        self.check(_post(stack, self.path, {"model": model, **self.asked}, self.headers))


def _post(stack: Stack, path: str, asked: Json, headers: Mapping[str, str] = {}) -> Any:
    """The JSON body, whatever the status, or the data of a stream's events."""
    theirs = {"x-api-key": stack.key, "anthropic-version": "2023-06-01"}
    key = theirs if path.startswith(MESSAGES) else {"authorization": f"Bearer {stack.key}"}
    sent = {"content-type": "application/json", **key, **headers}
    request = urllib.request.Request(stack.gateway + path, json.dumps(asked).encode(), sent)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        text = error.read().decode()
    if not asked.get("stream") or text.startswith("{"):
        return json.loads(text)
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


# --- what an answer must be -----------------------------------------------------------------------------------


class OpenAIError(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorBody(BaseModel):
    error: OpenAIError


def _chat(finish: str) -> Callable[[Any], None]:
    def check(body: Any) -> None:
        read: ChatCompletion = fits(ChatCompletion, body)
        for choice in read.choices:
            _same(finish, choice.finish_reason, "finish_reason")
            if finish == "tool_calls" or choice.message.tool_calls:
                _json_object([call.function.arguments for call in choice.message.tool_calls or ()])
        _full_usage(read.usage)

    return check


def _chat_stream(*, usage: bool = False) -> Callable[[Any], None]:
    def check(events: Any) -> None:
        if not isinstance(events, list):
            raise Wrong(f"no stream: {events}")
        *told, last = events
        _same("[DONE]", last, "the last event")
        chunks: list[ChatCompletionChunk] = [fits(ChatCompletionChunk, event) for event in told]
        _same(1, len({chunk.id for chunk in chunks}), "the number of ids")
        if usage:
            *chunks, end = chunks
            _same([], end.choices, "the choices of the last chunk")
            _full_usage(end.usage)
            _same(
                True,
                all("usage" in chunk.model_fields_set for chunk in chunks),
                "usage, if null, in all chunks",
            )
        _same("assistant", chunks[0].choices[0].delta.role, "the first role")
        finishes = [
            choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason
        ]
        _same(1, len(finishes), "the number of finish reasons")

    return check


def _full_usage(usage: CompletionUsage | None) -> None:
    if usage is None:
        raise Wrong("no usage")
    _same(usage.prompt_tokens + usage.completion_tokens, usage.total_tokens, "total_tokens")


def _completion(body: Any) -> None:
    read: Completion = fits(Completion, body)
    _full_usage(read.usage)


def _completion_stream(events: Any) -> None:
    if not isinstance(events, list):
        raise Wrong(f"no stream: {events}")
    *told, last = events
    _same("[DONE]", last, "the last event")
    for event in told:
        # Before the last the published API writes null here, and the schema has no null.
        choices = [
            {**choice, "finish_reason": choice["finish_reason"] or "stop"} for choice in event["choices"]
        ]
        fits(Completion, {**event, "choices": choices})


def _openai_error(body: Any) -> None:
    fits(OpenAIErrorBody, body)


def _message(*stops: str) -> Callable[[Any], None]:
    def check(body: Any) -> None:
        read: Message = fits(Message, body)
        if read.stop_reason not in stops:
            raise Wrong(f"stop_reason is {read.stop_reason!r}, not {' or '.join(stops)}")
        _same(read.stop_reason == "stop_sequence", read.stop_sequence is not None, "a stop_sequence")

    return check


def _message_stream(events: Any) -> None:
    if not isinstance(events, list):
        raise Wrong(f"no stream: {events}")
    told = [event for event in events if event["type"] != "ping"]
    for event in told:
        fits(RawMessageStreamEvent, event)
    kinds = [event["type"] for event in told]
    _same("message_start", kinds[0], "the first event")
    _same(["message_delta", "message_stop"], kinds[-2:], "the last events")
    opened = [event["index"] for event in told if event["type"] == "content_block_start"]
    closed = [event["index"] for event in told if event["type"] == "content_block_stop"]
    _same(list(range(len(opened))), opened, "the blocks' numbers")
    _same(opened, closed, "the blocks that end")


def _anthropic_error(body: Any) -> None:
    fits(ErrorResponse, body)
    _same(True, "request_id" in body, "request_id")


def _count(body: Any) -> None:
    fits(MessageTokensCount, body)


def _or_refused(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """For what not every provider has: done, or refused in the dialect's own shape."""

    def checked(body: Any) -> None:
        (_openai_error if isinstance(body, dict) and "error" in body else check)(body)

    return checked


def _json_object(texts: list[str]) -> None:
    try:
        whole = bool(texts) and all(isinstance(json.loads(text), dict) for text in texts)
    except json.JSONDecodeError:
        whole = False
    if not whole:
        raise Wrong(f"no calls, or arguments that are no JSON object: {texts}")


def _same(wanted: object, found: object, what: str) -> None:
    if wanted != found:
        raise Wrong(f"{what}: {found!r}, not {wanted!r}")


# --- the cases ------------------------------------------------------------------------------------------------

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"

# Greedy, and with room for the bundled model's white space: what it says is the same in every run.
_ASK: Json = {
    "messages": [{"role": "user", "content": "Say hello in exactly 3 words."}],
    "max_tokens": 256,
    "temperature": 0,
}
_SCHEMA: Json = {
    "type": "object",
    "properties": {"celsius": {"type": "boolean"}, "kind": {"enum": ["now", "later"]}},
    "required": ["celsius", "kind"],
    "additionalProperties": False,
}
_TOOLS: Json = {
    **_ASK,
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": _SCHEMA}}],
    "tool_choice": "required",
}
_FORMAT: Json = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": _SCHEMA}}
_THEIR_TOOLS: Json = {
    **_ASK,
    "tools": [{"name": "get_weather", "input_schema": _SCHEMA}],
    "tool_choice": {"type": "any"},
}
_GREETED: Json = {
    **_ASK,
    "messages": [{"role": "assistant", "content": "How can I help?"}, *_ASK["messages"]],
}
_STREAM: Json = {"stream": True}
_USAGE: Json = {"stream": True, "stream_options": {"include_usage": True}}

CASES = (
    Case("chat", CHAT, _ASK, _chat("stop")),
    Case("chat-stream", CHAT, _ASK | _STREAM, _chat_stream()),
    Case("chat-stream-usage", CHAT, _ASK | _USAGE, _chat_stream(usage=True)),
    Case("chat-length", CHAT, _ASK | {"max_tokens": 1}, _chat("length")),
    Case("chat-stop", CHAT, _ASK | {"stop": ["o", "e"]}, _chat("stop")),
    Case("chat-json-schema", CHAT, _ASK | {"response_format": _FORMAT}, _chat("stop")),
    Case("chat-tools", CHAT, _TOOLS, _chat("tool_calls")),
    Case("chat-tools-stream", CHAT, _TOOLS | _USAGE, _chat_stream(usage=True)),
    Case("chat-logprobs", CHAT, _ASK | {"logprobs": True, "top_logprobs": 2}, _or_refused(_chat("stop"))),
    Case("chat-logprobs-stream", CHAT, _ASK | _STREAM | {"logprobs": True}, _or_refused(_chat_stream())),
    Case("chat-n", CHAT, _ASK | {"n": 2}, _or_refused(_chat("stop"))),
    Case("chat-assistant-first", CHAT, _GREETED, _chat("stop")),
    Case("chat-no-messages", CHAT, {}, _openai_error),
    Case("chat-wrong-type", CHAT, {**_ASK, "temperature": "hot"}, _openai_error),
    Case("chat-wrong-key", CHAT, _ASK, _openai_error, {"authorization": "Bearer tg-wrong"}),
    Case("text", TEXT, {"prompt": "One, two", "max_tokens": 8}, _or_refused(_completion)),
    Case("text-logprobs", TEXT, {"prompt": "One", "max_tokens": 4, "logprobs": 2}, _or_refused(_completion)),
    Case("text-stream", TEXT, {"prompt": "One", "max_tokens": 8} | _STREAM, _or_refused(_completion_stream)),
    Case("messages", MESSAGES, _ASK, _message("end_turn")),
    Case("messages-stream", MESSAGES, _ASK | _STREAM, _message_stream),
    Case("messages-max-tokens", MESSAGES, _ASK | {"max_tokens": 1}, _message("max_tokens")),
    Case(
        "messages-stop-sequence",
        MESSAGES,
        _ASK | {"stop_sequences": ["o", "e"]},
        _message("stop_sequence", "end_turn"),
    ),
    Case("messages-tools", MESSAGES, _THEIR_TOOLS, _message("tool_use")),
    Case("messages-tools-stream", MESSAGES, _THEIR_TOOLS | _STREAM, _message_stream),
    Case("messages-count", f"{MESSAGES}/count_tokens", {"messages": _ASK["messages"]}, _count),
    Case("messages-no-messages", MESSAGES, {"max_tokens": 8}, _anthropic_error),
    Case("messages-no-max-tokens", MESSAGES, {"messages": _ASK["messages"]}, _anthropic_error),
    Case("messages-wrong-key", MESSAGES, _ASK, _anthropic_error, {"x-api-key": "tg-wrong"}),
)
