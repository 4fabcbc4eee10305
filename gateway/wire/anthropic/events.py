"""Chunks as a stream of Anthropic's Messages API.

The events and their order: https://platform.claude.com/docs/en/build-with-claude/streaming.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from gateway.errors import GatewayError
from gateway.types import Call, Chunk, Json
from gateway.wire.anthropic.errors import error_value
from gateway.wire.anthropic.news import TEXT, THINKING, News, pieces

_DELTA = {TEXT: b'{"type":"text_delta","text":', THINKING: b'{"type":"thinking_delta","thinking":'}
_JSON_DELTA = b'{"type":"input_json_delta","partial_json":'
_EMPTY: Mapping[str, dict[str, Json]] = {TEXT: {"text": ""}, THINKING: {"thinking": "", "signature": ""}}


@dataclass(slots=True)
class _Tool:
    """A tool call on its way; it can be told of once its name is known."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    block: int | None = None

    def is_complete(self) -> bool:
        try:
            orjson.loads("".join(self.arguments))
        except orjson.JSONDecodeError:
            return False
        return True


class Events:
    """Writes one answer as server-sent events."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._news = News(call)
        self._started = False
        self._open: str | int | None = None
        """What the open block holds: text, thinking, or the tool call of this index."""
        self._blocks = 0
        self._prefix = b""
        """All of an event that adds to the open block, up to the words themselves."""
        self._tools: dict[int, _Tool] = {}

    def event(self, chunk: Chunk) -> bytes:
        """Empty when the chunk holds nothing for the caller."""
        if chunk.usage is not None or chunk.finish_reason is not None or chunk.envelope:
            self._news.hear(chunk)
        delta = chunk.delta
        if delta is None or chunk.index:
            return b""
        if self._open == TEXT and len(delta) == 1 and delta.get("content"):  # nearly all of them
            return self._prefix + orjson.dumps(delta["content"]) + b"}}\n\n"
        out = [] if self._started else [self._start()]
        for kind, words in pieces(delta):
            if self._open != kind:
                out.append(self._begin(kind, {"type": kind, **_EMPTY[kind]}, _DELTA[kind]))
            out.append(self._prefix + orjson.dumps(words) + b"}}\n\n")
        if refusal := delta.get("refusal"):
            if chunk.finish_reason == "content_filter":
                self._news.refusal = refusal
            else:
                out.append(self.event(Chunk(delta={"content": refusal})))
        for i, piece in enumerate(delta.get("tool_calls") or ()):
            out.append(self._tool(piece, i))
        return b"".join(out)

    def comment(self, text: str) -> bytes:
        """A ping: the dialect has no words for it."""
        return b'event: ping\ndata: {"type":"ping"}\n\n'

    def end(self) -> bytes:
        out = b"" if self._started else self._start()
        for index, tool in self._tools.items():
            if tool.block is None:
                out += self._begin_tool(index, tool)
        delta = self._news.stop(has_tools=bool(self._tools))
        told = {"type": "message_delta", "delta": delta, "usage": self._news.total_usage()}
        return out + self._close() + _event(told | self._news.own_fields()) + _event({"type": "message_stop"})

    def error(self, error: GatewayError) -> bytes:
        """The last event of an answer that failed; no ``message_stop`` follows."""
        return _event(error_value(error, self._call.request_id))

    def _start(self) -> bytes:
        self._started = True
        message = self._news.head([], self._news.expected_usage())
        return _event({"type": "message_start", "message": message})

    def _begin(self, what: str | int, block: dict[str, Json], delta: bytes) -> bytes:
        closed = self._close()
        self._open = what
        index = self._blocks
        self._blocks += 1
        self._prefix = _addition(index, delta)
        return closed + _event({"type": "content_block_start", "index": index, "content_block": block})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return _event({"type": "content_block_stop", "index": self._blocks - 1})

    def _tool(self, piece: Mapping[str, Json], position: int) -> bytes:
        index = piece.get("index", position)
        tool = self._tools.get(index)
        if tool is None:
            tool = self._tools[index] = _Tool()
        function = piece.get("function") or {}
        tool.id = piece.get("id") or tool.id
        tool.name = function.get("name") or tool.name
        words = function.get("arguments")
        if words:
            tool.arguments.append(words)
        if tool.block is None:
            return self._begin_tool(index, tool) if tool.name and self._has_room(index) else b""
        if not words:
            return b""
        prefix = self._prefix if self._open == index else _addition(tool.block, _JSON_DELTA)
        return prefix + orjson.dumps(words) + b"}}\n\n"

    def _has_room(self, index: int) -> bool:
        # Blocks follow one another, but a server may tell of its calls by turns: the next one waits for the first.
        other = self._tools[self._open] if isinstance(self._open, int) and self._open != index else None
        return other is None or other.is_complete()

    def _begin_tool(self, index: int, tool: _Tool) -> bytes:
        tool.block = self._blocks
        call_id = tool.id or f"toolu_{self._call.request_id}_{index}"
        block = {"type": "tool_use", "id": call_id, "name": tool.name, "input": {}}
        out = self._begin(index, block, _JSON_DELTA)
        words = "".join(tool.arguments)
        return out + self._prefix + orjson.dumps(words) + b"}}\n\n" if words else out


def _addition(index: int, delta: bytes) -> bytes:
    head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":' % index
    return head + delta


def _event(value: dict[str, Json]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(value["type"]).encode(), orjson.dumps(value))
