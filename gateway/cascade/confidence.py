"""Is a step's answer good enough to keep? Judged by its log-probabilities, its form, and what it says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from gateway.cascade import json_schema
from gateway.cascade.refusal import is_refusal
from gateway.policy.schema import Escalate
from gateway.types import ChatRequest, Chunk, Json

_NOT_TOLD = -9999.0
"""What OpenAI writes for a token too unlikely to have a figure."""
_CAPS = ("max_completion_tokens", "max_tokens")


class Verdict(NamedTuple):
    good: bool
    reason: str
    """``good``, ``low_logprob``, ``refusal`` or ``invalid_schema``."""
    mean_logprob: float | None = None
    """Nats per token, of the choice with the lowest; None where the backend told none."""


def judge(chunks: Iterable[Chunk], request: ChatRequest, escalate: Escalate) -> Verdict:
    """The verdict on a whole answer: it is good when each of its choices is.

    An answer without log-probabilities is not held against its model: not every server tells them. One that the
    caller's own cap cut short is not invalid for it.
    """
    choices: dict[int, _Choice] = {}
    for chunk in chunks:
        if chunk.delta is not None:
            choices.setdefault(chunk.index, _Choice()).add(chunk)
    said = choices.values()
    mean = min((c.logprob / c.tokens for c in said if c.tokens), default=None)
    bar = escalate.mean_logprob_below
    if escalate.on_refusal and any(choice.is_refusal() for choice in said):
        return Verdict(False, "refusal", mean)
    if escalate.on_invalid_schema and not all(choice.fits(request) for choice in said):
        return Verdict(False, "invalid_schema", mean)
    if bar is not None and mean is not None and mean < bar:
        return Verdict(False, "low_logprob", mean)
    return Verdict(True, "good", mean)


def token_logprobs(told: Mapping[str, Json]) -> Iterator[float]:
    """The log-probabilities of the tokens that were said, in either of OpenAI's shapes (chat and completions)."""
    content, listed = told.get("content"), told.get("token_logprobs")
    if isinstance(content, list):
        listed = [token.get("logprob") for token in content if isinstance(token, dict)]
    for value in listed if isinstance(listed, list) else ():
        # The first token of an echoed prompt has null.
        if isinstance(value, int | float) and _NOT_TOLD < value <= 0:
            yield value


@dataclass(slots=True)
class _Choice:
    texts: list[str] = field(default_factory=list)
    refused: bool = False
    calls_tools: bool = False
    finish_reason: str | None = None
    logprob: float = 0.0
    tokens: int = 0

    def add(self, chunk: Chunk) -> None:
        delta = chunk.delta or {}
        if isinstance(text := delta.get("content"), str):
            self.texts.append(text)
        self.refused |= bool(delta.get("refusal"))
        self.calls_tools |= bool(delta.get("tool_calls") or delta.get("function_call"))
        self.finish_reason = chunk.finish_reason or self.finish_reason
        if chunk.logprobs:
            told = [*token_logprobs(chunk.logprobs)]
            self.logprob += math.fsum(told)
            self.tokens += len(told)

    def is_refusal(self) -> bool:
        return self.refused or self.finish_reason == "content_filter" or is_refusal("".join(self.texts))

    def fits(self, request: ChatRequest) -> bool:
        """Whether it has the form that the request's ``response_format`` asks for."""
        wanted = request.params.get("response_format")
        if not isinstance(wanted, Mapping) or self.calls_tools:
            return True
        kind = wanted.get("type")
        if kind not in ("json_object", "json_schema"):
            return True
        if self.finish_reason == "length" and any(request.params.get(cap) for cap in _CAPS):
            return True
        try:
            value = orjson.loads("".join(self.texts))
        except orjson.JSONDecodeError:
            return False
        described = wanted.get("json_schema")
        if kind == "json_object" or not isinstance(described, Mapping):
            return isinstance(value, dict)
        return json_schema.allows(described.get("schema", True), value)
