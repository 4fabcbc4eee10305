"""The parts of one candidate, gathered from deltas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from gateway.types import Json


@dataclass(slots=True)
class _Part:
    """On its way: a text, or a call."""

    value: dict[str, Json]
    """Its fields, the text or the arguments apart."""
    pieces: list[str] = field(default_factory=list)
    call: int | None = None
    sealed: bool = False
    """What comes next is another part."""

    def whole(self) -> dict[str, Json]:
        text = "".join(self.pieces)
        if self.call is not None:
            call = {**self.value["functionCall"], "args": _arguments(text)}
            return {**self.value, "functionCall": call}
        return {**self.value, "text": text} if "text" in self.value else self.value


class CandidateParts:
    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._calls: dict[int, _Part] = {}

    def add(self, delta: Mapping[str, Json]) -> None:
        native = delta.get("native") or {}
        more = native.get("delta") or {}
        count = len(self._parts)
        thinking = delta.get("reasoning_content") or delta.get("reasoning")
        if thinking and isinstance(thinking, str):
            self._text(thinking, thought=True)
        content = delta.get("content")
        if isinstance(content, list):  # in parts, as some servers send it
            content = "".join(part["text"] for part in content if _is_text(part))
        if content:
            self._text(content)
        if (refusal := delta.get("refusal")) and isinstance(refusal, str):
            self._text(refusal)
        for i, piece in enumerate(delta.get("tool_calls") or ()):
            self._call(piece, i)
        if "content_block" in native:
            self._parts.append(_Part(dict(native["content_block"]), sealed=True))
        elif more:
            if len(self._parts) == count and (not self._parts or self._parts[-1].sealed):
                self._text("")
            last = self._parts[-1]
            last.value.update(more)
            last.sealed = True

    def take(self) -> list[dict[str, Json]]:
        """The parts that are whole by now: texts at once, calls and what follows them at the end."""
        ready: list[dict[str, Json]] = []
        while self._parts and self._parts[0].call is None:
            ready.append(self._parts.pop(0).whole())
        return ready

    def rest(self) -> list[dict[str, Json]]:
        """All that is left; texts that follow each other are one."""
        parts, self._parts = self._parts, []
        return [part.whole() for part in parts]

    def _text(self, text: str, *, thought: bool = False) -> None:
        last = self._parts[-1] if self._parts else None
        kind: dict[str, Json] = {"text": "", "thought": True} if thought else {"text": ""}
        if last is None or last.sealed or last.call is not None or last.value != kind:
            last = _Part(kind)
            self._parts.append(last)
        last.pieces.append(text)

    def _call(self, piece: Mapping[str, Json], position: int) -> None:
        index = piece.get("index", position)
        part = self._calls.get(index)
        if part is None:
            part = self._calls[index] = _Part({"functionCall": {"name": ""}}, call=index)
            self._parts.append(part)
        function = piece.get("function") or {}
        call = part.value["functionCall"]
        if piece.get("id"):
            call["id"] = piece["id"]
        call["name"] = function.get("name") or call["name"]
        if function.get("arguments"):
            part.pieces.append(function["arguments"])


def _is_text(part: Json) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)


def _arguments(text: str) -> dict[str, Json]:
    """Arguments that are no JSON object, as those that a cap has cut, are handed on as they are."""
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"raw_arguments": text}
