"""Prompts and answers as spans tell them, where the policy says that they may.

The form is that of ``gen_ai.input.messages``, ``gen_ai.output.messages`` and ``gen_ai.system_instructions``: JSON, each
message a role and parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import orjson

from gateway.joined_chunks import JoinedChunks
from gateway.spans import Attributes
from gateway.types import ChatRequest, Chunk, Json

MOST = 65_536
"""Characters of one text; the rest is left out, and said to be."""
_SYSTEM = ("system", "developer")


def input_attributes(request: ChatRequest) -> Attributes:
    """What was asked. A prompt of token ids is not told: it is no text."""
    if request.messages is None:
        prompts = request.prompt if isinstance(request.prompt, list) else [request.prompt]
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        return (
            {"gen_ai.input.messages": _json([_message("user", [_text(text)]) for text in texts])}
            if texts
            else {}
        )
    system: list[Json] = []
    messages: list[Json] = []
    for message in request.messages:
        role = str(message.get("role"))
        if role in _SYSTEM and not messages:
            system += _parts(message.get("content"))
        else:
            messages.append(_message(role, _parts_of(message)))
    found: Attributes = {"gen_ai.input.messages": _json(messages)}
    if system:
        found["gen_ai.system_instructions"] = _json(system)
    return found


class Answer:
    """Collects an answer's chunks."""

    __slots__ = ("_chunks", "_untold")

    def __init__(self) -> None:
        self._chunks = JoinedChunks()
        self._untold = False
        """A guard took it back, or it is no text that a model wrote."""

    def add(self, chunk: Chunk) -> None:
        delta = chunk.delta
        if chunk.revocation is not None or (delta is not None and ("bytes" in delta or "json" in delta)):
            self._untold = True
        elif chunk.comment is None and self._chunks.size <= MOST:
            self._chunks.add(chunk)

    def json(self) -> str:
        """``gen_ai.output.messages``; empty where there was no answer, or none to be told."""
        if self._untold:
            return ""
        choices: dict[int, dict[str, Json]] = {}
        for joined in self._chunks.items:
            chunk = joined.chunk()
            delta = chunk.delta or {}
            if "embedding" in delta or "moderation" in delta:
                return ""
            choice = choices.setdefault(chunk.index, {"texts": {}, "calls": {}, "finish": ""})
            for name, kind in (("reasoning_content", "reasoning"), ("content", "text")):
                if isinstance(piece := delta.get(name), str) and piece:
                    choice["texts"][kind] = choice["texts"].get(kind, "") + piece
            for call in delta.get("tool_calls") or ():
                _join_call(choice["calls"], call)
            choice["finish"] = chunk.finish_reason or choice["finish"]
        if not choices:
            return ""
        return _json(
            [
                {
                    **_message(
                        "assistant",
                        [
                            *(
                                {"type": kind, "content": _cut(text)}
                                for kind, text in choice["texts"].items()
                            ),
                            *(_call(call) for call in choice["calls"].values()),
                        ],
                    ),
                    "finish_reason": choice["finish"],
                }
                for _, choice in sorted(choices.items())
            ]
        )


def _parts_of(message: Mapping[str, Json]) -> list[Json]:
    content = message.get("content")
    if message.get("role") == "tool":
        result = content if isinstance(content, str) else _parts(content)
        result = _cut(result) if isinstance(result, str) else result
        return [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": result}]
    calls = message.get("tool_calls")
    return [*_parts(content), *(_call(call) for call in calls or () if isinstance(call, Mapping))]


def _parts(content: Json) -> list[Json]:
    """Images and audio are named, not told."""
    if isinstance(content, str):
        return [_text(content)]
    if not isinstance(content, Sequence):
        return []
    return [
        _text(part["text"]) if isinstance(part.get("text"), str) else {"type": str(part.get("type"))}
        for part in content
        if isinstance(part, Mapping)
    ]


def _call(call: Mapping[str, Json]) -> dict[str, Json]:
    function = call.get("function")
    named = function if isinstance(function, Mapping) else {}
    arguments = named.get("arguments")
    try:
        parsed = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        parsed = arguments
    return {"type": "tool_call", "id": call.get("id"), "name": named.get("name"), "arguments": parsed}


def _join_call(calls: dict[int, dict[str, Json]], piece: Mapping[str, Json]) -> None:
    function = piece.get("function") or {}
    call = calls.setdefault(piece.get("index", 0), {"id": None, "function": {"name": None, "arguments": ""}})
    call["id"] = piece.get("id") or call["id"]
    call["function"]["name"] = function.get("name") or call["function"]["name"]
    call["function"]["arguments"] += function.get("arguments") or ""


def _message(role: str, parts: Iterable[Json]) -> dict[str, Json]:
    return {"role": role, "parts": list(parts)}


def _text(text: str) -> dict[str, Json]:
    return {"type": "text", "content": _cut(text)}


def _cut(text: str) -> str:
    return text if len(text) <= MOST else f"{text[:MOST]} … ({len(text) - MOST} more characters)"


def _json(value: Json) -> str:
    return orjson.dumps(value, default=str).decode("utf-8", "replace")
