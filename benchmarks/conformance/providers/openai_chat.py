"""OpenAI's chat completions, scripted (https://platform.openai.com/docs/api-reference/chat)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson
from openai.types.chat import completion_create_params
from starlette.requests import Request
from starlette.responses import Response

from benchmarks.conformance.providers import said
from benchmarks.conformance.providers.errand import errand
from benchmarks.conformance.providers.openai_edge import (
    CREATED,
    FINGERPRINT,
    Json,
    Refused,
    grant,
    json,
    read,
    stream,
)
from benchmarks.conformance.providers.said import Wish


async def chat(request: Request) -> Response:
    asked = await read(request, completion_create_params.CompletionCreateParamsBase)
    messages = asked.get("messages")
    if not isinstance(messages, list):
        raise Refused(
            400,
            "Missing required parameter: 'messages'.",
            param="messages",
            code="missing_required_parameter",
        )
    if not messages:
        raise Refused(
            400,
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.",
            param="messages",
            code="empty_array",
        )
    words = said.last_words(messages)
    grant(words, request)
    choices = [_choice(asked, i) for i in range(asked.get("n") or 1)]
    thought = len(said.split(said.THOUGHT)) if (asked.get("reasoning_effort") or "none") != "none" else 0
    usage = _usage(said.count(messages), sum(len(choice["tokens"]) for choice in choices), thought)
    if asked.get("stream"):
        return stream(_events(asked, choices, usage), words)
    await said.pause(words, request)
    whole = [
        {
            "index": choice["index"],
            "message": {**choice["message"], "refusal": choice["refusal"], "annotations": []},
            "logprobs": choice["logprobs"],
            "finish_reason": choice["finish"],
        }
        for choice in choices
    ]
    return json(
        {
            "id": f"chatcmpl-{said.new_id()}",
            "object": "chat.completion",
            "created": CREATED,
            "model": _snapshot(asked["model"]),
            "choices": whole,
            "usage": usage,
            "service_tier": "default",
            "system_fingerprint": FINGERPRINT,
        }
    )


def _choice(asked: Json, index: int) -> Json:
    """``tokens`` of its words, ``message`` without what all messages have, ``calls``, ``logprobs`` and ``finish``."""
    messages = asked["messages"]
    limit = asked.get("max_completion_tokens") or asked.get("max_tokens")
    choice: Json = {"index": index, "calls": [], "refusal": None, "logprobs": None, "tokens": ()}
    calls = _calls(asked)
    if calls:
        return {
            **choice,
            "calls": calls,
            "tokens": tuple(call["function"]["arguments"] for call in calls),
            "message": {"role": "assistant", "content": None, "tool_calls": calls},
            # A call of the one tool that was named is told as an end like any other.
            "finish": "stop" if isinstance(asked.get("tool_choice"), dict) else "tool_calls",
        }
    if said.last_words(messages) == Wish.REFUSE:
        tokens = tuple(said.split(said.REFUSAL))
        message = {"role": "assistant", "content": None}
        return {**choice, "refusal": said.REFUSAL, "tokens": tokens, "message": message, "finish": "stop"}
    stops = asked.get("stop") or ()
    words = said.text(_words(asked), limit=limit, stops=[stops] if isinstance(stops, str) else stops)
    if asked.get("logprobs"):
        top = asked.get("top_logprobs") or 0
        choice["logprobs"] = {"content": [_likely(token, top) for token in words.tokens], "refusal": None}
    return {
        **choice,
        "tokens": words.tokens,
        "message": {"role": "assistant", "content": "".join(words.tokens)},
        "finish": "length" if words.cut else "stop",
    }


def _words(asked: Json) -> str:
    match asked.get("response_format"):
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return orjson.dumps(said.instance(schema)).decode()
        case {"type": "json_object"}:
            if "json" not in str(asked["messages"]).lower():
                raise Refused(
                    400,
                    "'messages' must contain the word 'json' in some form, to use 'response_format' of type "
                    "'json_object'.",
                    param="messages",
                )
            return '{"count": 5}'
    return said.picture(size) if (size := _picture(asked["messages"])) else said.TEXT


def _picture(messages: Sequence[Json]) -> int:
    """The bytes of the last message's picture."""
    content = messages[-1].get("content")
    for part in content if isinstance(content, list) else ():
        if part.get("type") == "image_url":
            return said.size_of(part["image_url"]["url"])
    return 0


def _calls(asked: Json) -> list[Json]:
    """The tools that are called: the named one, all of them where several may be, or none after a tool's result."""
    tools = [tool["function"] for tool in asked.get("tools") or () if tool.get("type") == "function"]
    for index, tool in enumerate(tools):
        if not isinstance(tool["name"], str):
            where = f"tools[{index}].function.name"
            message = f"Invalid type for '{where}': expected a string, not {type(tool['name']).__name__}."
            raise Refused(400, message, param=where, code="invalid_type")
    chosen = asked.get("tool_choice", "auto")
    if isinstance(chosen, dict):
        tools = [tool for tool in tools if tool["name"] == chosen["function"]["name"]]
    elif chosen == "none" or (chosen == "auto" and asked["messages"][-1].get("role") == "tool"):
        return []
    if asked.get("parallel_tool_calls") is False:
        tools = tools[:1]
    calls = errand(asked["messages"], {tool["name"] for tool in tools})
    if calls is None:
        calls = tuple((tool["name"], said.instance(tool.get("parameters") or {})) for tool in tools)
    return [
        {
            "id": f"call_{i}Zxq0RYuK3nUD9WLbGhJvT",
            "type": "function",
            "function": {"name": name, "arguments": orjson.dumps(arguments).decode()},
        }
        for i, (name, arguments) in enumerate(calls)
    ]


def _events(asked: Json, choices: Sequence[Json], usage: Json) -> Iterator[Json]:
    include = bool((asked.get("stream_options") or {}).get("include_usage"))
    common = {
        "id": f"chatcmpl-{said.new_id()}",
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": _snapshot(asked["model"]),
        "service_tier": "default",
        "system_fingerprint": FINGERPRINT,
    }

    def event(index: int, delta: Json, finish: str | None = None, logprobs: Json | None = None) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return {
            **common,
            "choices": [choice],
            **({"usage": None} if include else {}),
            "obfuscation": "pd8Xc1"[: 1 + index],
        }

    for choice in choices:
        at = choice["index"]
        calls = choice["calls"]
        yield event(at, {"role": "assistant", "content": None if calls else "", "refusal": None})
        for i, call in enumerate(calls):
            opening = {**call, "index": i, "function": {"name": call["function"]["name"], "arguments": ""}}
            yield event(at, {"tool_calls": [opening]})
            arguments = call["function"]["arguments"]
            for piece in (arguments[:3], arguments[3:]):
                yield event(at, {"tool_calls": [{"index": i, "function": {"arguments": piece}}]})
        if not calls:
            field = "content" if choice["refusal"] is None else "refusal"
            told = (choice["logprobs"] or {}).get("content") or [None] * len(choice["tokens"])
            for token, likely in zip(choice["tokens"], told, strict=True):
                logprobs = None if likely is None else {"content": [likely], "refusal": None}
                yield event(at, {field: token}, None, logprobs)
        yield event(at, {}, choice["finish"])
    if include:
        yield {**common, "choices": [], "usage": usage, "obfuscation": ""}


def _likely(token: str, top: int) -> Json:
    one = {"token": token, "logprob": -0.25, "bytes": list(token.encode())}
    others = [{**one, "logprob": -0.25 - i} for i in range(top)]
    return {**one, "top_logprobs": others}


def _usage(prompt: int, words: int, thought: int) -> Json:
    completion = words + thought
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": thought,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _snapshot(model: str) -> str:
    return f"{model}-2024-07-18"
