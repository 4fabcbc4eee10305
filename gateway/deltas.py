"""The fields of a delta, and deltas joined: one list of names for all who look into answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.types import Chunk, Json

TEXT_FIELDS = ("reasoning_content", "reasoning", "content", "refusal")
"""Texts that come in pieces, in the order in which a reader reads them: thinking comes before what it leads to."""
SEALED_FIELDS = frozenset({"signature", "redacted_thinking"})
"""Thinking in a form that only the model that wrote it can read."""
THINKING_FIELDS = frozenset({"reasoning_content", "reasoning"}) | SEALED_FIELDS
"""A model's thinking before its answer."""
_JOINED = frozenset((*TEXT_FIELDS, "arguments"))
_NESTED = frozenset({"function", "function_call"})


def has_content(chunk: Chunk) -> bool:
    """Whether it holds anything of an answer: its text, a call, its end; the role alone is nothing."""
    if chunk.finish_reason is not None or chunk.logprobs is not None:
        return True
    delta = chunk.delta
    return bool(delta) and any(value for name, value in delta.items() if name != "role")  # type: ignore[union-attr]


def text_piece(delta: Mapping[str, Json]) -> tuple[str | int, str] | None:
    """The text that ``delta`` adds to, by its field or its tool call's index, and the piece; None where there is more.

    It may name the role as well.
    """
    content: Any = delta.get("content")
    if len(delta) == 1 and content.__class__ is str:  # nearly all of them
        return "content", content
    if len(delta) != 1:
        plain = len(delta) == 2 and "role" in delta and isinstance(content, str)
        return ("content", content) if plain else None
    ((name, value),) = delta.items()
    if name in TEXT_FIELDS and isinstance(value, str):
        return name, value
    if name != "tool_calls":
        return None
    match value:
        case [{"index": int(index), "function": {"arguments": str(text), **others}, **rest}] if not (
            others or rest
        ):
            return index, text
    return None


class _Text(list[str]):
    """A text in the pieces in which it came: to join it with each would take time in the square of their number."""


def join_delta(whole: dict[str, Json], delta: Mapping[str, Json]) -> None:
    """Add a delta to those before it: texts and lists grow, tool calls are matched by index, the rest is replaced.

    ``joined`` makes of it what can be written.
    """
    for name, value in delta.items():
        if name in _JOINED and isinstance(value, str):
            known = whole.get(name)
            if isinstance(known, _Text):
                known.append(value)
            else:
                whole[name] = _Text([value])
        elif name == "tool_calls" and isinstance(value, list):
            _join_tool_calls(whole.setdefault("tool_calls", []), value)
        elif isinstance(value, list) and not isinstance(whole.get(name), _Text):
            _extend(whole, name, value)  # annotations, images, signed thoughts
        elif name in _NESTED and isinstance(value, Mapping):
            join_delta(whole.setdefault(name, {}), value)
        elif value or name not in whole:  # some servers repeat "id" and "name" as empty ones
            whole[name] = value


def joined(whole: Mapping[str, Json]) -> dict[str, Json]:
    """What ``join_delta`` has made, with its texts in one piece."""
    return {name: _joined(name, value) for name, value in whole.items()}


def _joined(name: str, value: Json) -> Json:
    if isinstance(value, _Text):
        return "".join(value)
    if name == "tool_calls" and isinstance(value, list):
        return [joined(call) for call in value]
    return joined(value) if name in _NESTED and isinstance(value, Mapping) else value


def _join_tool_calls(whole: list[dict[str, Json]], pieces: list[Mapping[str, Json]]) -> None:
    if len(pieces) == 1 and whole and whole[-1].get("index") == pieces[0].get("index") is not None:
        join_delta(whole[-1], pieces[0])
        return
    by_index = {call["index"]: call for call in reversed(whole) if "index" in call}
    for piece in pieces:
        known = by_index.get(piece.get("index"))
        if known is None:
            known = {}
            whole.append(known)
            if "index" in piece:
                by_index[piece["index"]] = known
        join_delta(known, piece)


def join_lists(whole: dict[str, Json], more: Mapping[str, Any]) -> None:
    """Log-probabilities: lists under the same name follow one another."""
    for name, value in more.items():
        if isinstance(value, list):
            _extend(whole, name, value)
        else:
            whole[name] = value


def _extend(whole: dict[str, Json], name: str, more: list[Json]) -> None:
    known = whole.get(name)
    if not isinstance(known, list):
        known = whole[name] = []
    known += more
