"""Chunks as an answer of Anthropic's Messages API: ``Events`` for a stream, ``Whole`` for one message.

The events and their order: https://platform.claude.com/docs/en/build-with-claude/streaming.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from gateway.errors import GatewayError
from gateway.types import Call, Chunk, Json, Usage
from gateway.wire.anthropic import stop_reasons
from gateway.wire.anthropic.errors import error_value

_TEXT, _THINKING = "text", "thinking"
_DELTA = {_TEXT: b'{"type":"text_delta","text":', _THINKING: b'{"type":"thinking_delta","thinking":'}


@dataclass(slots=True)
class _News:
    """What is known of the answer as a whole."""

    call: Call
    message_id: str = ""
    finish_reason: str | None = None
    refusal: str | None = None
    stop_sequence: str | None = None
    tollgate: Json = None
    usage: Usage | None = None

    def hear(self, chunk: Chunk) -> None:
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
        if not chunk.envelope:
            return
        told = str(chunk.envelope.get("id") or "")
        self.message_id = self.message_id or (told if told.startswith("msg_") else "")
        self.stop_sequence = chunk.envelope.get("stop_sequence") or self.stop_sequence
        self.tollgate = chunk.envelope.get("tollgate") or self.tollgate

    def head(self, content: list[Json], usage: dict[str, Json]) -> dict[str, Json]:
        return {
            "id": self.message_id or f"msg_{self.call.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self.call.candidate.model if self.call.candidate else self.call.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def stop(self, *, has_tools: bool) -> dict[str, Json]:
        reason = stop_reasons.to_anthropic(
            self.finish_reason, has_tools=has_tools, stop_sequence=self.stop_sequence
        )
        told: dict[str, Json] = {"stop_reason": reason, "stop_sequence": self.stop_sequence}
        if self.refusal is not None:
            told["stop_details"] = {"type": "refusal", "category": None, "explanation": self.refusal}
        return told

    def own_fields(self) -> dict[str, Json]:
        return {"tollgate": self.tollgate} if self.tollgate else {}

    def total(self) -> dict[str, Json]:
        usage = self.usage or Usage(self.call.demand.prompt if self.call.demand else 0, 0)
        return _usage(usage.prompt - usage.cached, usage.completion, usage.cached)


def _usage(fresh: int, output: int, cached: int = 0) -> dict[str, Json]:
    return {
        "input_tokens": max(fresh, 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


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


def _pieces(delta: Mapping[str, Json]) -> list[tuple[str, str]]:
    """What a delta says in words, in the order in which Anthropic's blocks have it."""
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    said = delta.get("content")
    found = [(_THINKING, thought)] if thought else []
    return [*found, (_TEXT, said)] if said else found


class Events:
    """Writes one answer as server-sent events."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._news = _News(call)
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
        if self._open == _TEXT and len(delta) == 1 and delta.get("content"):  # nearly all of them
            return self._prefix + orjson.dumps(delta["content"]) + b"}}\n\n"
        out = [] if self._started else [self._start()]
        for kind, words in _pieces(delta):
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
        told = {"type": "message_delta", "delta": delta, "usage": self._news.total()}
        return out + self._close() + _event(told | self._news.own_fields()) + _event({"type": "message_stop"})

    def error(self, error: GatewayError) -> bytes:
        """The last event of an answer that failed; no ``message_stop`` follows."""
        return _event(error_value(error, self._call.request_id))

    def _start(self) -> bytes:
        self._started = True
        prompt = self._call.demand.prompt if self._call.demand else 0
        return _event({"type": "message_start", "message": self._news.head([], _usage(prompt, 0))})

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


_EMPTY: Mapping[str, dict[str, Json]] = {_TEXT: {"text": ""}, _THINKING: {"thinking": "", "signature": ""}}
_JSON_DELTA = b'{"type":"input_json_delta","partial_json":'


def _addition(index: int, delta: bytes) -> bytes:
    head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":' % index
    return head + delta


def _event(value: dict[str, Json]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(value["type"]).encode(), orjson.dumps(value))


class Whole:
    """Collects a stream of chunks into the one message of a non-streaming answer."""

    def __init__(self, call: Call) -> None:
        self._news = _News(call)
        self._said: list[tuple[str, list[str]]] = []
        """Blocks of words, each in its pieces, with tool calls at the places where they began."""
        self._tools: dict[int, dict[str, str]] = {}

    def add(self, chunk: Chunk) -> None:
        self._news.hear(chunk)
        delta = chunk.delta
        if delta is None or chunk.index:
            return
        for kind, words in _pieces(delta):
            self._say(kind, words)
        if refusal := delta.get("refusal"):
            if chunk.finish_reason == "content_filter":
                self._news.refusal = refusal
            else:
                self._say(_TEXT, refusal)
        for i, piece in enumerate(delta.get("tool_calls") or ()):
            index = piece.get("index", i)
            tool = self._tools.get(index)
            if tool is None:
                tool = self._tools[index] = {"id": "", "name": "", "arguments": ""}
                self._said.append(("tool_use", [str(index)]))
            function = piece.get("function") or {}
            tool["id"] = piece.get("id") or tool["id"]
            tool["name"] = function.get("name") or tool["name"]
            tool["arguments"] += function.get("arguments") or ""

    def _say(self, kind: str, words: str) -> None:
        if not self._said or self._said[-1][0] != kind:
            self._said.append((kind, []))
        self._said[-1][1].append(words)

    def body(self) -> bytes:
        content = [self._block(kind, pieces) for kind, pieces in self._said]
        return orjson.dumps(
            self._news.head(content, self._news.total())
            | self._news.stop(has_tools=bool(self._tools))
            | self._news.own_fields()
        )

    def _block(self, kind: str, pieces: list[str]) -> dict[str, Json]:
        if kind != "tool_use":
            block = {"type": kind, kind: "".join(pieces)}
            return block | {"signature": ""} if kind == _THINKING else block
        index = int(pieces[0])
        tool = self._tools[index]
        call_id = tool["id"] or f"toolu_{self._news.call.request_id}_{index}"
        return {
            "type": "tool_use",
            "id": call_id,
            "name": tool["name"],
            "input": _arguments(tool["arguments"]),
        }


def _arguments(text: str) -> dict[str, Json]:
    """Arguments that are no JSON object, as those that ``max_tokens`` has cut, are handed on as they are."""
    try:
        value = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {"raw_arguments": text}
