"""Chunks as a stream of Anthropic's Messages API.

The events and their order: https://platform.claude.com/docs/en/build-with-claude/streaming.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson

from gateway.errors import GatewayError
from gateway.types import Call, Chunk, Json
from gateway.wire.anthropic import ids
from gateway.wire.anthropic.errors import error_value
from gateway.wire.anthropic.message_fields import TEXT, THINKING, MessageFields, text_pieces
from gateway.wire.dialect import EventWriter

_DELTA = {TEXT: b'{"type":"text_delta","text":', THINKING: b'{"type":"thinking_delta","thinking":'}
_JSON_DELTA = b'{"type":"input_json_delta","partial_json":'
HIDDEN, FOREIGN = "redacted_thinking", "foreign"
"""Blocks whose text is not the model's answer."""
_SIGNATURE = b'{"type":"signature_delta","signature":'
EMPTY: Mapping[str, dict[str, Json]] = {
    TEXT: {"type": TEXT, "text": "", "citations": None},
    THINKING: {"type": THINKING, "thinking": "", "signature": ""},
}
"""Blocks of text, before there is any."""


@dataclass(slots=True)
class _Tool:
    """A tool call on its way; it can be sent once its name is known."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    more: dict[str, Json] = field(default_factory=dict)
    """The provider's further fields of the block."""
    block: int | None = None
    _judged: tuple[int, bool] = (0, False)
    """Whether so many pieces were all of the arguments: asked again and again while other calls wait."""

    def is_complete(self) -> bool:
        if self._judged[0] != len(self.arguments):
            try:
                orjson.loads("".join(self.arguments))
                self._judged = len(self.arguments), True
            except orjson.JSONDecodeError:
                self._judged = len(self.arguments), False
        return self._judged[1]


class AnthropicEventWriter(EventWriter):
    """Writes one answer as server-sent events."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._fields = MessageFields(call)
        self._started = False
        self._open: str | int | None = None
        """What the open block holds: text, thinking, or the tool call of this index."""
        self._blocks = 0
        self._prefix = b""
        """All of an event that adds to the open block, up to the text itself."""
        self._tools: dict[int, _Tool] = {}

    def event(self, chunk: Chunk) -> bytes:
        """Empty when the chunk holds nothing for the caller."""
        if chunk.usage is not None or chunk.finish_reason is not None or chunk.envelope:
            self._fields.observe(chunk)
        delta = chunk.delta
        if delta is None or chunk.index:
            return b""
        text = delta.get("content")
        if self._open == TEXT and len(delta) == 1 and text and isinstance(text, str):  # nearly all of them
            return self._prefix + orjson.dumps(text) + b"}}\n\n"
        out = [] if self._started else [self._start()]
        for kind, piece in text_pieces(delta):
            if self._open != kind:
                out.append(self._begin(kind, EMPTY[kind], _DELTA[kind]))
            out.append(self._prefix + orjson.dumps(piece) + b"}}\n\n")
        if len(delta) > 1 or not text:
            out.append(self._others(delta))
        if (refusal := delta.get("refusal")) and isinstance(refusal, str):
            if chunk.finish_reason == "content_filter":
                self._fields.refusal = refusal
            else:
                out.append(self.event(Chunk(delta={"content": refusal})))
        more = self._more_of_call(delta)
        for i, piece in enumerate(delta.get("tool_calls") or ()):
            out.append(self._tool(piece, i, more))
        return b"".join(out)

    def pieces(self, like: Chunk, texts: Sequence[str]) -> bytes:
        if self._open != TEXT or like.index or like.envelope or "content" not in (like.delta or ()):
            return super().pieces(like, texts)
        before, after = self._prefix, b"}}\n\n"
        return before + (after + before).join(map(orjson.dumps, texts)) + after

    def comment(self, text: str) -> bytes:
        """A ping: the dialect has no comments."""
        return b'event: ping\ndata: {"type":"ping"}\n\n'

    def end(self) -> bytes:
        # Joined once: adding bytes up would take time in the square of an upstream's number of calls.
        out = [] if self._started else [self._start()]
        out += [self._begin_tool(index, tool) for index, tool in self._tools.items() if tool.block is None]
        last = self._fields.end(has_tools=bool(self._tools))
        return b"".join([*out, self._close(), _event(last), _event({"type": "message_stop"})])

    def error(self, error: GatewayError) -> bytes:
        """The last event of an answer that failed; no ``message_stop`` follows."""
        return _event(error_value(error, self._call.request_id))

    def _start(self) -> bytes:
        self._started = True
        message = self._fields.head([], self._fields.usage_so_far())
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

    def _others(self, delta: Mapping[str, Json]) -> bytes:
        """What there is beside text and calls of the caller's own tools."""
        out = b""
        if signature := delta.get("signature"):
            if self._open != THINKING:
                out += self._begin(THINKING, EMPTY[THINKING], _DELTA[THINKING])
            out += _addition(self._blocks - 1, _SIGNATURE) + orjson.dumps(signature) + b"}}\n\n"
            out += self._close()  # what is thought from here on is another thought
        if hidden := delta.get("redacted_thinking"):
            out += self._begin(HIDDEN, {"type": HIDDEN, "data": hidden}, b"")
        native = delta.get("native")
        if native and not delta.get("tool_calls"):
            if native["type"] == "content_block_start":
                out += self._foreign(native["content_block"])
            else:
                if (
                    self._open is None
                    or native["delta"].get("type") == "citations_delta" != self._open != TEXT
                ):
                    out += self._begin(TEXT, EMPTY[TEXT], _DELTA[TEXT])
                out += self._addition(native["delta"])
        return out

    def _foreign(self, block: Mapping[str, Json]) -> bytes:
        """The beginning of a block, as the provider sent it; what came whole is sent in pieces, as in streams."""
        kind = block["type"]
        if kind in EMPTY:
            out = self._begin(kind, {**EMPTY[kind], **block, **_none_yet(block)}, _DELTA[kind])
            cited = block.get("citations") or ()
            return out + b"".join(
                self._addition({"type": "citations_delta", "citation": one}) for one in cited
            )
        given = block.get("input") if kind.endswith("tool_use") else None
        if not given:
            return self._begin(FOREIGN, dict(block), b"")
        out = self._begin(FOREIGN, {**block, "input": {}}, b"")
        return out + self._addition(
            {"type": "input_json_delta", "partial_json": orjson.dumps(given).decode()}
        )

    def _addition(self, delta: Mapping[str, Json]) -> bytes:
        return _event({"type": "content_block_delta", "index": self._blocks - 1, "delta": delta})

    def _more_of_call(self, delta: Mapping[str, Json]) -> dict[str, Json]:
        native = delta.get("native")
        if not native or not delta.get("tool_calls"):
            return {}
        return {name: value for name, value in native["content_block"].items() if name != "type"}

    def _tool(self, piece: Mapping[str, Json], position: int, more: dict[str, Json]) -> bytes:
        index = piece.get("index", position)
        tool = self._tools.get(index)
        if tool is None:
            tool = self._tools[index] = _Tool()
        function = piece.get("function") or {}
        tool.id = piece.get("id") or tool.id
        tool.name = function.get("name") or tool.name
        tool.more = more or tool.more
        arguments = function.get("arguments")
        if arguments:
            tool.arguments.append(arguments)
        if tool.block is None:
            return self._begin_tool(index, tool) if tool.name and self._may_begin(index) else b""
        if not arguments:
            return b""
        prefix = self._prefix if self._open == index else _addition(tool.block, _JSON_DELTA)
        return prefix + orjson.dumps(arguments) + b"}}\n\n"

    def _may_begin(self, index: int) -> bool:
        # Blocks are sequential, but a server may interleave its calls: the next waits until the first is complete.
        other = self._tools[self._open] if isinstance(self._open, int) and self._open != index else None
        return other is None or other.is_complete()

    def _begin_tool(self, index: int, tool: _Tool) -> bytes:
        tool.block = self._blocks
        call_id = ids.call_to_anthropic(tool.id or f"call_{self._call.request_id}_{index}")
        out = self._begin(index, self._fields.tool_use(call_id, tool.name, tool.more), _JSON_DELTA)
        arguments = "".join(tool.arguments)
        return out + self._prefix + orjson.dumps(arguments) + b"}}\n\n" if arguments else out


def _none_yet(block: Mapping[str, Json]) -> dict[str, Json]:
    return {"citations": []} if block.get("citations") else {}


def _addition(index: int, delta: bytes) -> bytes:
    head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":' % index
    return head + delta


def _event(value: dict[str, Json]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(value["type"]).encode(), orjson.dumps(value))
