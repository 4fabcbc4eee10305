"""One line of a batch: what it asks, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import orjson

from gateway.batches.batch import Sums
from gateway.types import Json

LineState = Literal["pending", "completed", "failed"]
"""As it is kept. A line that runs is ``pending``: if nobody lives to tell how it ended, it runs again."""


@dataclass(frozen=True, slots=True)
class Line:
    number: int
    """From 1, as lines of the file are counted."""
    custom_id: str
    model: str
    """As the caller wrote it; empty where the endpoint needs none."""
    prefix: str
    """Lines whose prompts begin alike have this in common, from its beginning on."""
    body: str
    """JSON; empty once there is a result."""


@dataclass(frozen=True, slots=True)
class LineResult:
    """What is kept of a line that has run: it never runs again."""

    number: int
    written: str
    """Its line of the output file, or of the error file."""
    sums: Sums

    @property
    def state(self) -> LineState:
        return "completed" if self.sums.completed else "failed"


def result_of(batch_id: str, line: Line, request_id: str, status: int, body: bytes) -> LineResult:
    """Of an answer: below 400 it is output, all else an error."""
    answer = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}
    written = _written(batch_id, line, answer, None)
    if status >= 400:
        return LineResult(line.number, written, Sums(failed=1))
    try:
        return LineResult(line.number, written, _sums(body))
    except orjson.JSONDecodeError:
        return failed(batch_id, line, "internal_error", "The answer to this request was no JSON.")


def failed(batch_id: str, line: Line, code: str, message: str) -> LineResult:
    """Of a line that was not answered at all."""
    written = _written(batch_id, line, None, {"code": code, "message": message})
    return LineResult(line.number, written, Sums(failed=1))


def _written(batch_id: str, line: Line, response: Json, error: Json) -> str:
    name = blake2b(f"{batch_id}-{line.number}".encode(), digest_size=16).hexdigest()
    value = {
        "id": f"batch_req_{name}",
        "custom_id": line.custom_id,
        "response": response,
        "error": error,
    }
    return orjson.dumps(value).decode()


def _sums(body: bytes) -> Sums:
    """By the answer's ``usage``, whichever of OpenAI's two forms it has; moderations have none."""
    answer = orjson.loads(body)
    usage = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(usage, dict):
        return Sums(completed=1)

    def count(*path: str) -> int:
        value: Json = usage
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value if type(value) is int else 0

    return Sums(
        completed=1,
        prompt_tokens=count("prompt_tokens") or count("input_tokens"),
        cached_tokens=count("prompt_tokens_details", "cached_tokens")
        or count("input_tokens_details", "cached_tokens"),
        completion_tokens=count("completion_tokens") or count("output_tokens"),
        reasoning_tokens=count("completion_tokens_details", "reasoning_tokens")
        or count("output_tokens_details", "reasoning_tokens"),
    )
