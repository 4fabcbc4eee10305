"""Whether a step's answer is good enough to keep, by its log-probabilities, its form and its text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import orjson

from gateway.cascade import json_schema
from gateway.policy.schema import Escalate
from gateway.types import ChatRequest, Chunk, Json

_NO_LOGPROB = -9999.0
"""OpenAI's value for a token that is too unlikely to have one."""
_CAPS = ("max_completion_tokens", "max_tokens")
_WITHIN = 400
"""Characters in which a refusal is looked for; what follows is content."""
_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_DOES = (
    r"(?:help|assist|provide|answer|do that|do this|comply|fulfil|support|create|generate|write|discuss|engage"
    r"|offer|share|give|complete|continue|process|participate|respond|recommend|promote|produce|access|browse"
    r"|accommodate|advise|predict|determine|solve)"
)
_CANNOT = (
    rf"(?:(?:can ?not|can't|won't|will not|could not|couldn't) (?:\w+ly )?{_DOES}"
    r"|(?:am|'m)(?: sorry, but i am| sorry, but i'm)? (?:not able|unable|not allowed|not permitted|not comfortable)\b"
    r"|(?:have to|must|need to) (?:\w+ly )?(?:decline|refuse)|must respectfully|refuse to|decline to"
    r"|do not have the ability|don't have the ability)"
)
_REFUSAL = re.compile(
    rf"(?:(?:i(?:'m| am)(?: \w+){{0,2}} (?:sorry|afraid)|sorry|my apologies|(?:i|we) apologi[sz]e|unfortunately"
    rf"|as an? (?:\w+ )?(?:ai|assistant|language model)[\w ]*|while i (?:understand|appreciate)[^.!]{{0,120}})"
    rf"[,.;!:]? ?(?:but |that |for [\w ]{{1,40}}[,.] ?(?:but )?)?)?"
    rf"(?:however,? )?(?:i|we) ?{_CANNOT}",
    re.IGNORECASE,
)


class Assessment(NamedTuple):
    good: bool
    reason: str
    """``good``, ``low_logprob``, ``refusal`` or ``invalid_schema``."""
    mean_logprob: float | None = None
    """Nats per token, of the choice with the lowest; None where the backend reports none."""


def assess(chunks: Iterable[Chunk], request: ChatRequest, escalate: Escalate) -> Assessment:
    """A whole answer is good when each of its choices is.

    Missing log-probabilities do not count against it: not every server reports them. Nor does JSON that is invalid as
    the caller's own cap cut it short.
    """
    choices: dict[int, _Choice] = {}
    for chunk in chunks:
        if chunk.delta is not None:
            choices.setdefault(chunk.index, _Choice()).add(chunk)
    mean = min((c.logprob / c.tokens for c in choices.values() if c.tokens), default=None)
    bar = escalate.mean_logprob_below
    if escalate.on_refusal and any(choice.is_refusal() for choice in choices.values()):
        return Assessment(False, "refusal", mean)
    if escalate.on_invalid_schema and not all(choice.fits(request) for choice in choices.values()):
        return Assessment(False, "invalid_schema", mean)
    if bar is not None and mean is not None and mean < bar:
        return Assessment(False, "low_logprob", mean)
    return Assessment(True, "good", mean)


def token_logprobs(logprobs: Mapping[str, Json]) -> Iterator[float]:
    """The log-probabilities of the answer's tokens, in either of OpenAI's shapes (chat and completions)."""
    content, listed = logprobs.get("content"), logprobs.get("token_logprobs")
    if isinstance(content, list):
        listed = [token.get("logprob") for token in content if isinstance(token, dict)]
    for value in listed if isinstance(listed, list) else ():
        # The first token of an echoed prompt has null.
        if isinstance(value, int | float) and _NO_LOGPROB < value <= 0:
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
            logprobs = [*token_logprobs(chunk.logprobs)]
            self.logprob += math.fsum(logprobs)
            self.tokens += len(logprobs)

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


def is_refusal(text: str) -> bool:
    """Whether ``text`` opens with a well-known refusal. A heuristic: it knows phrases, not intentions."""
    thought = _THOUGHT.match(text) if text.lstrip().startswith("<think>") else None
    start = thought.end() if thought else 0
    opening = " ".join(text[start : start + _WITHIN].replace("’", "'").split()).lstrip("*_\"'#> ")
    return _REFUSAL.match(opening) is not None
