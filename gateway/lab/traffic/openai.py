"""Requests in OpenAI's form, one a line, in any of the shapes that logs of them have.

``{"model": …, "messages": […]}``, as it was sent; ``{"request": {…}, "response": {…}}``, with its answer; and the lines
of OpenAI's Batch API (``custom_id``, ``url``, ``body``; of its results ``response.body``). Beside them, or in the
answer, a time (``at``, ``timestamp``, ``created_at``, ``created``: seconds, milliseconds or ISO 8601) and, where known,
``tenant``, ``key``, ``user``, ``ttft``, ``duration``, ``status``. Lines without a time come one a second.
Tokens are the answer's ``usage``, or an estimate of the text (four characters a token).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from gateway.recording.prompt_hashes import BLOCK_TOKENS, block_hashes, key_hash
from gateway.recording.recorded_request import RecordedRequest

_REQUEST = ("messages", "prompt", "input", "contents")
KEYS = frozenset({*_REQUEST, "body", "request", "response", "choices"})
"""A row with one of these is one."""
_TIMES = ("at", "timestamp", "created_at", "created", "time")
_APIS = {"messages": "chat", "contents": "chat", "prompt": "completions", "input": "responses"}
_BESIDE = frozenset(
    {"stream", "stream_options", "user", "metadata", "store", "service_tier", "safety_identifier"}
)
_CHARACTERS_PER_TOKEN = 4


def logged(row: Mapping[str, Any], number: int) -> RecordedRequest:
    """Raises ``ValueError`` and others of what is none."""
    asked = row.get("body") or row.get("request") or row
    answer = row.get("response") or {}
    status = answer.get("status_code", row.get("status", 200))
    answer = answer.get("body") or answer
    if "choices" in row and not answer:
        answer = row
    error = answer.get("error") or row.get("error")
    usage = answer.get("usage") or row.get("usage") or {}
    prompt_tokens, completion_tokens, cached, thoughts = _tokens(usage)
    prompt = next((asked[name] for name in _REQUEST if asked.get(name) is not None), None)
    tools, text = asked.get("tools") or asked.get("functions"), _answers_text(answer)
    if not usage and (prompt is not None or text):
        prompt_tokens = _estimate([tools, prompt]) if prompt is not None else 0
        completion_tokens = len(text) // _CHARACTERS_PER_TOKEN + 1 if text else 0
    blocks = block_hashes(tools, prompt) if prompt is not None else ()
    status = status if isinstance(status, int) else 200
    failed = bool(error) or status >= 400
    return RecordedRequest(
        at=_time(row, answer, number),
        request_id=str(row.get("request_id") or answer.get("id") or row.get("custom_id") or ""),
        tenant=str(row.get("tenant") or ""),
        key=str(row.get("key") or ""),
        user=key_hash(str(user)) if (user := row.get("user") or asked.get("user")) else "",
        api=_api(row, asked),
        model=str(asked.get("model") or answer.get("model") or ""),
        answered=str(answer.get("model") or ""),
        stream=bool(asked.get("stream")),
        max_tokens=_cap(asked),
        blocks=blocks,
        block_tokens=BLOCK_TOKENS if blocks else 0,
        prompt_key=_whole(asked) if prompt is not None else "",
        outcome="failed" if failed else "completed",
        status=500 if failed and status < 400 else status,
        code=str(error.get("code") or error.get("type") or "")
        if isinstance(error, dict)
        else str(error or ""),
        ttft=_seconds(row.get("ttft")),
        duration=_seconds(row.get("duration")),
        finish_reason=_finish(answer),
        tools=bool(tools),
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        cached_tokens=cached,
        reasoning_tokens=thoughts,
    )


def _api(row: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    url = row.get("url")
    if isinstance(url, str) and "/" in url:
        path = url.rstrip("/")
        return "chat" if path.endswith("/chat/completions") else path.rpartition("/")[2]
    name = next((name for name in _REQUEST if asked.get(name) is not None), "messages")
    if name == "input" and "embed" in str(asked.get("model")):
        return "embeddings"
    return _APIS[name]


def _tokens(usage: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """Of the prompt, the answer, the cached part of the one, the thoughts in the other.

    OpenAI's two forms, and Anthropic's, whose ``input_tokens`` are those beside the cached.
    """
    prompt = int(usage.get("prompt_tokens", usage.get("input_tokens")) or 0)
    read, made = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    thoughts = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    beside = int(read or 0) + int(made or 0) if "prompt_tokens" not in usage else 0
    return (
        prompt + beside,
        int(usage.get("completion_tokens", usage.get("output_tokens")) or 0),
        int(details.get("cached_tokens") or read or 0),
        int(thoughts.get("reasoning_tokens") or 0),
    )


def _answers_text(answer: Mapping[str, Any]) -> str:
    choices = answer.get("choices")
    if not isinstance(choices, list):
        return ""
    texts = (choice.get("text") or (choice.get("message") or {}).get("content") for choice in choices)
    return "".join(text for text in texts if isinstance(text, str))


def _finish(answer: Mapping[str, Any]) -> str:
    choices = answer.get("choices")
    reason = (
        choices[0].get("finish_reason")
        if isinstance(choices, list) and choices
        else answer.get("stop_reason")
    )
    return str(reason or "")


def _cap(asked: Mapping[str, Any]) -> int | None:
    names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
    return next((asked[name] for name in names if isinstance(asked.get(name), int)), None)


def _whole(asked: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in asked.items() if name not in _BESIDE and value is not None}
    return key_hash(orjson.dumps(kept, option=orjson.OPT_SORT_KEYS).decode())


def _estimate(value: Any) -> int:
    return len(orjson.dumps(value).decode()) // _CHARACTERS_PER_TOKEN + 1


def _time(row: Mapping[str, Any], answer: Mapping[str, Any], number: int) -> float:
    given = next((row[name] for name in _TIMES if row.get(name) is not None), answer.get("created"))
    return float(number) if given is None else moment(given)


def moment(given: Any) -> float:
    """Seconds since 1970, of seconds, milliseconds or ISO 8601, which is UTC where it names no offset."""
    if isinstance(given, str):
        try:
            given = float(given)
        except ValueError:
            read = datetime.fromisoformat(given.replace(" UTC", ""))
            return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    seconds = float(given)
    # No traffic of language models is from after 5138 in seconds, or from before 1973 in milliseconds.
    return seconds / 1000 if seconds > 1e11 else seconds


def _seconds(given: Any) -> float | None:
    return None if given is None else float(given)
