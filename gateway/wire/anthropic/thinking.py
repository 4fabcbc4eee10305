"""The thinking that a caller of Anthropic's dialect asks for and gives back, in the words of OpenAI's callers.

The canonical form leaves it out, as most servers refuse what they do not know. Providers whose models think as
Anthropic's do, or nearly, are told of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gateway.types import ChatRequest, Json
from gateway.wire.anthropic.body_to_request import DIALECT

_THOUGHTS = ("thinking", "redacted_thinking")


def with_thinking(request: ChatRequest) -> ChatRequest:
    """``request`` with ``thinking``, and ``thinking_blocks`` in its assistant's messages, where its body has them."""
    native = request.native
    if native is None or native.dialect != DIALECT or request.messages is None:
        return request
    if isinstance(native.body.get("thinking"), dict) and "thinking" not in request.params:
        request = request.having({**request.params, "thinking": native.body["thinking"]})
    turns = _turns(native.body)
    messages = tuple(
        {**message, "thinking_blocks": thoughts}
        if message["role"] == "assistant" and (thoughts := next(turns, None))
        else message
        for message in request.messages or ()
    )
    return replace(request, messages=messages)


def _turns(body: Mapping[str, Json]) -> Iterator[list[Json]]:
    """The thoughts of each assistant's turn that has become a message: those of thoughts alone have not."""
    for turn in body["messages"]:
        if turn["role"] != "assistant":
            continue
        content = turn["content"]
        if isinstance(content, str):
            yield []
            continue
        thoughts = [block for block in content if block["type"] in _THOUGHTS]
        if len(thoughts) < len(content):
            yield thoughts
