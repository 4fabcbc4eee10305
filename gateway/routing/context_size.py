"""How much of a model's context a request takes."""

from __future__ import annotations

from gateway.metering.estimate import declared_cap
from gateway.types import Call


def size_of(call: Call) -> int:
    """Tokens of prompt and answer in one sequence, at most; 0 where nothing is known."""
    return prompt_of(call) + (declared_cap(call.request.params) or 0) if call.estimate is not None else 0


def prompt_of(call: Call) -> int:
    tokens = call.estimate.prompt if call.estimate is not None else 0
    return tokens // call.request.prompt_count
