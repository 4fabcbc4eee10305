"""What a model answered to a case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """``error`` says why there is none. Latencies in seconds, cost in dollars; None where nobody knows."""

    text: str = ""
    tool_calls: tuple[tuple[str, str], ...] = ()
    """Names, and arguments as JSON text."""
    finish_reason: str = ""
    error: str = ""
    request_id: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    first_token: float | None = None
    seconds: float | None = None
    trace_id: str = ""
    """Of its request, where that was traced."""


def read_answer(line: Mapping[str, Any]) -> Answer:
    """A line of a batch's output or error file (https://platform.openai.com/docs/api-reference/batch/request-output)."""
    response = line.get("response")
    if response is None:
        error = line.get("error") or {}
        return Answer(error=f"{error.get('code') or 'no_answer'}: {error.get('message') or 'never answered'}")
    body, request_id = response.get("body") or {}, response.get("request_id") or ""
    if response.get("status_code") != 200:
        error = body.get("error") or {}
        status = response.get("status_code")
        return Answer(
            error=f"{status} {error.get('code') or ''}: {error.get('message')}", request_id=request_id
        )
    choice = (body.get("choices") or [{}])[0]
    message, usage = choice.get("message") or {}, body.get("usage") or {}
    calls = [call["function"] for call in message.get("tool_calls") or () if "function" in call]
    return Answer(
        text=message.get("content") or message.get("refusal") or "",
        tool_calls=tuple((call.get("name") or "", call.get("arguments") or "") for call in calls),
        finish_reason=choice.get("finish_reason") or "",
        request_id=request_id,
        prompt_tokens=usage.get("prompt_tokens") or 0,
        completion_tokens=usage.get("completion_tokens") or 0,
    )
