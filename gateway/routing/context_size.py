"""How much of a model's context a request takes."""

from __future__ import annotations

from gateway.metering.estimate import declared_cap
from gateway.types import Call


def size_of(call: Call) -> int:
    """Tokens of prompt and answer in one sequence, at most; 0 where nothing is known."""
    return prompt_of(call) + (declared_cap(call.request.params) or 0) if call.estimated() is not None else 0


def prompt_of(call: Call) -> int:
    return call.expected_prompt // call.request.prompt_count
