"""Chunks as one message of Anthropic's Messages API (https://platform.claude.com/docs/en/api/messages)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from gateway.types import Call, Chunk, Json
from gateway.wire.anthropic import ids
from gateway.wire.anthropic.chunks_to_events import EMPTY, HIDDEN
from gateway.wire.anthropic.message_fields import TEXT, THINKING, MessageFields, text_pieces


@dataclass(slots=True)
class _Block:
    """A content block on its way."""

    kind: str
    value: dict[str, Json]
    text: list[str] = field(default_factory=list)
    """Of a text, a thought, or the JSON of a call's input."""
    citations: list[Json] = field(default_factory=list)
    """In order after those that it began with."""
    ended: bool = False

    def add(self, delta: Mapping[str, Json]) -> None:
        """Add a stream's delta to a block of the provider's own."""
        match delta:
            case {"type": "citations_delta", "citation": citation}:
                self.citations.append(citation)
            case {"type": "input_json_delta", "partial_json": str(piece)}:
                self.text.append(piece)
            case _:
                for name, value in delta.items():
                    known = self.value.get(name)
                    if name != "type":
                        both = isinstance(known, str) and isinstance(value, str)
                        self.value[name] = known + value if both else value

    def whole(self) -> dict[str, Json]:
        text = "".join(self.text)
        if self.citations:
            self.value["citations"] = [*(self.value.get("citations") or ()), *self.citations]
        if self.kind in EMPTY:
            return {**self.value, self.kind: text}
        return {**self.value, "input": _arguments(text)} if "input" in self.value and text else self.value


class AnthropicBodyWriter:
    """Collects a stream of chunks into the one message of a non-streaming answer."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._fields = MessageFields(call)
        self._blocks: list[_Block] = []
        self._tools: dict[int, _Block] = {}

    def add(self, chunk: Chunk) -> None:
        self._fields.observe(chunk)
        delta = chunk.delta
        if delta is None or chunk.index:
            return
        for kind, piece in text_pieces(delta):
            self._text_block(kind).text.append(piece)
        if signature := delta.get("signature"):
            thinking = self._text_block(THINKING)
            thinking.value["signature"] = signature
            thinking.ended = True
        if hidden := delta.get("redacted_thinking"):
            self._begin(HIDDEN, {"type": HIDDEN, "data": hidden})
        native = delta.get("native")
        if native and not delta.get("tool_calls"):
            self._foreign(native)
        if (refusal := delta.get("refusal")) and isinstance(refusal, str):
            if chunk.finish_reason == "content_filter":
                self._fields.refusal = refusal
            else:
                self._text_block(TEXT).text.append(refusal)
        for i, piece in enumerate(delta.get("tool_calls") or ()):
            self._tool(piece, i, native["content_block"] if native else {})

    def body(self) -> bytes:
        content = [block.whole() for block in self._blocks]
        return orjson.dumps(self._fields.whole(content, has_tools=bool(self._tools)))

    def _begin(self, kind: str, value: dict[str, Json]) -> _Block:
        self._blocks.append(_Block(kind, value))
        return self._blocks[-1]

    def _text_block(self, kind: str) -> _Block:
        """The block of this kind that is open."""
        last = self._blocks[-1] if self._blocks else None
        if last is not None and last.kind == kind and not last.ended:
            return last
        return self._begin(kind, dict(EMPTY[kind]))

    def _foreign(self, event: Mapping[str, Json]) -> None:
        if event["type"] == "content_block_start":
            value = event["content_block"]
            self._begin(value["type"], {**EMPTY.get(value["type"], {}), **value})
        elif event["delta"].get("type") == "citations_delta" or not self._blocks:
            self._text_block(TEXT).add(event["delta"])
        else:
            self._blocks[-1].add(event["delta"])

    def _tool(self, piece: Mapping[str, Json], position: int, more: Mapping[str, Json]) -> None:
        index = piece.get("index", position)
        block = self._tools.get(index)
        if block is None:
            call_id = f"toolu_{self._call.request_id}_{index}"
            block = self._tools[index] = self._begin("tool_use", self._fields.tool_use(call_id, "", more))
        function = piece.get("function") or {}
        if piece.get("id"):
            block.value["id"] = ids.call_to_anthropic(piece["id"])
        block.value["name"] = function.get("name") or block.value["name"]
        block.text.append(function.get("arguments") or "")


def _arguments(text: str) -> dict[str, Json]:
    """Arguments that are no JSON object, as those that ``max_tokens`` has cut, are handed on as they are."""
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"raw_arguments": text}
