"""What a coding agent's user asks for in so many words: one call of one tool, once.

The providers look for it in a whole conversation, as agents send more with their users' words than these.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from json import JSONDecoder
from typing import Any

import orjson

Call = tuple[str, Any]
"""A tool's name, and its arguments."""

_BEGINS, _WITH = "Call the tool ", " once, with these arguments: "
_RESULTS = (b'"role":"tool"', b'"type":"tool_result"', b'"toolResult":', b'"functionResponse":')
"""In the APIs of all providers."""


def errand(conversation: Any, tools: Container[str]) -> tuple[Call, ...] | None:
    """The calls to make for it: none once there is a result, or where there is no such tool; None without an errand."""
    for text in _texts(conversation):
        _, begins, rest = text.partition(_BEGINS)
        name, known, rest = rest.partition(_WITH)
        if begins and known:
            done = any(mark in orjson.dumps(conversation) for mark in _RESULTS)
            return () if done or name not in tools else ((name, JSONDecoder().raw_decode(rest)[0]),)
    return None


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            yield from (text for one in value.values() for text in _texts(one))
        case list():
            yield from (text for one in value for text in _texts(one))
