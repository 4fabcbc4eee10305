"""The texts in a delta of an answer, and deltas made of texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gateway.deltas import SEALED_FIELDS, TEXT_FIELDS
from gateway.guards.texts import anthropic_texts, google_texts
from gateway.guards.texts.paths import Path
from gateway.types import ChatRequest, Json

Channel = str
"""Which of a choice's texts: ``content``, ``reasoning``, ``tool_calls[0].function.arguments`` …"""

CONTENT: Channel = "content"
GOOGLES = "part"
"""The type of an event that holds a part, or fields of one, of Google's."""
_FUNCTION = ("name", "arguments", "input")
_KNOWN = frozenset((*TEXT_FIELDS, *SEALED_FIELDS, "role", "tool_calls", "function_call"))
_CALL = frozenset(("index", "id", "type", "function", "custom"))


class DeltaText(NamedTuple):
    channel: Channel
    path: Path
    text: str


def delta_texts(delta: Mapping[str, Json]) -> list[DeltaText]:
    """The texts in ``delta``, but for empty ones."""
    content = delta.get("content")
    if len(delta) == 1 and content is not None:  # nearly always
        return [DeltaText(CONTENT, ("content",), content)] if content and isinstance(content, str) else []
    return [*_delta_texts(delta)]


def _delta_texts(delta: Mapping[str, Json]) -> Iterator[DeltaText]:
    # Thoughts precede content.
    for name in TEXT_FIELDS:
        text = delta.get(name)
        if isinstance(text, str) and text:
            yield DeltaText(name, (name,), text)
    calls = delta.get("tool_calls")
    for at, call in enumerate(calls if isinstance(calls, list) else ()):
        if not isinstance(call, Mapping):
            continue
        number = call.get("index", at)
        for kind in ("function", "custom"):
            for name, text in _named(call.get(kind)):
                path = ("tool_calls", at, kind, name)
                yield DeltaText(f"tool_calls[{number}].{kind}.{name}", path, text)
    for name, text in _named(delta.get("function_call")):
        yield DeltaText(f"function_call.{name}", ("function_call", name), text)
    if event := delta.get("native"):
        yield from _of_event(event)


def _of_event(event: Mapping[str, Json]) -> Iterator[DeltaText]:
    """The texts of a block, or of a delta to one, that the canonical form does not have."""
    field = "content_block" if "content_block" in event else "delta"
    read = google_texts.texts if event.get("type") == GOOGLES else anthropic_texts.texts
    for path, text in read(event[field]):
        name = "arguments" if path == ("partial_json",) else ".".join(map(str, path))
        yield DeltaText(f"native[{event.get('index')}].{name}", ("native", field, *path), text)


def is_whole(channel: Channel) -> bool:
    """Whether a text comes, and must leave, in one piece."""
    return channel.startswith("native[") and not channel.endswith("].arguments")


def _named(function: Json) -> Iterator[tuple[str, str]]:
    if isinstance(function, Mapping):
        for name in _FUNCTION:
            text = function.get(name)
            if isinstance(text, str) and text:
                yield name, text


def is_json(channel: Channel, request: ChatRequest) -> bool:
    """Whether the text is JSON: a tool call's arguments, or the content if the request asks for JSON."""
    if channel != CONTENT:
        return channel.endswith(".arguments")
    form = request.params.get("response_format")
    return isinstance(form, Mapping) and form.get("type") in ("json_object", "json_schema")


def delta_of(channel: Channel, text: str) -> dict[str, Json]:
    """A delta that holds ``text`` only."""
    head, _, name = channel.rpartition(".")
    if not head:
        return {channel: text}
    if head == "function_call":
        return {head: {name: text}}
    if head.startswith("native["):
        piece = {"type": "input_json_delta", "partial_json": text}
        index = int(head.removeprefix("native[").removesuffix("]"))
        return {"native": {"type": "content_block_delta", "index": index, "delta": piece}}
    number, _, kind = head.removeprefix("tool_calls[").partition("].")
    return {"tool_calls": [{"index": int(number), kind: {name: text}}]}


def readable(delta: Mapping[str, Json]) -> tuple[Mapping[str, Json], frozenset[str]]:
    """``delta`` without what cannot be scanned, and the names of what was left out.

    A content in parts, as some servers send it, becomes the text of its parts.
    """
    if len(delta) == 1 and isinstance(delta.get("content"), str):  # nearly always
        return delta, frozenset()
    content = delta.get("content")
    calls = delta.get("tool_calls")
    if (
        delta.keys() <= _KNOWN
        and not isinstance(content, list)
        and not calls
        and not delta.get("function_call")
        and all(delta.get(name) is None or isinstance(delta[name], str) for name in TEXT_FIELDS)
    ):
        return delta, frozenset()
    left_out = {name for name in delta.keys() - _KNOWN - {"native"} if delta[name] is not None}
    fresh: dict[str, Any] = {}
    for name, value in delta.items():
        if name == "tool_calls":
            calls = value if isinstance(value, list) else []
            fresh[name] = [_call(call) for call in calls if isinstance(call, Mapping)]
            if len(fresh[name]) < len(value or ()):
                left_out.add(name)
        elif name == "function_call":
            fresh[name] = _function(value)
        elif name == "content" and isinstance(value, list):
            fresh.update(_parts(value, left_out))
        elif name == "role" or _is_event(name, value) or _is_text(name, value):
            fresh[name] = value
        elif name in TEXT_FIELDS:
            left_out.add(name)
    return fresh, frozenset(left_out)


def _is_text(name: str, value: Json) -> bool:
    return name in (*TEXT_FIELDS, *SEALED_FIELDS) and (value is None or isinstance(value, str))


def _is_event(name: str, value: Json) -> bool:
    return (
        name == "native"
        and isinstance(value, Mapping)
        and any(isinstance(value.get(part), Mapping) for part in ("content_block", "delta"))
    )


def _call(call: Mapping[str, Json]) -> dict[str, Json]:
    kept = {name: value for name, value in call.items() if name in _CALL}
    return kept | {kind: _function(call[kind]) for kind in ("function", "custom") if kind in call}


def _function(function: Json) -> Json:
    if not isinstance(function, Mapping):
        return None
    return {name: function[name] for name in _FUNCTION if isinstance(function.get(name), str)}


def _parts(parts: list[Json], left_out: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) else part
        thought = part.get("thinking") if isinstance(part, Mapping) else None
        if isinstance(thought, list):
            thought = "".join(str(one.get("text") or "") for one in thought if isinstance(one, Mapping))
        if isinstance(text, str):
            found["content"] = found.get("content", "") + text
        elif isinstance(thought, str):
            found["reasoning_content"] = found.get("reasoning_content", "") + thought
        else:
            left_out.add("parts")
    return found
