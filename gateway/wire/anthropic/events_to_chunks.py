"""Anthropic's answers as chunks in OpenAI's delta shape.

The events and their order: https://platform.claude.com/docs/en/build-with-claude/streaming. What goes wrong in a
body or event raises ``KeyError``, ``TypeError`` or ``AttributeError``, for the caller to skip or to refuse.

A signed thought is followed by ``{"signature": …}``, and one that is hidden comes as ``{"redacted_thinking": …}``. What
OpenAI's shape lacks is kept for callers of Anthropic's dialect only: a block or a delta, as
``{"native": <event>}`` (or beside the tool call that it is about), and the message's own fields in the envelope.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from gateway.types import Chunk, Json, Usage
from gateway.wire.anthropic import ids, stop_reasons
from gateway.wire.levels import check_levels
from gateway.wire.token_counts import count, fields, is_count

_FIELDS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"type", "text"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "tool_use": frozenset({"type", "id", "name", "input"}),
}
"""The fields of each kind of block that the canonical form has."""
_MESSAGE_FIELDS = frozenset(
    {"id", "type", "role", "model", "content", "usage", "stop_reason", "stop_sequence"}
)
_WHY = ("stop_reason", "stop_sequence", "stop_details")


class AnthropicChunkReader:
    """Reads one answer, event by event; ``native`` is for a caller who speaks this dialect himself."""

    def __init__(self, *, native: bool = False) -> None:
        self.done = False
        """The end has come."""
        self.begun = False
        """A chunk was made, if only of the reason for an empty answer."""
        self._native = native
        self._finished = False
        self._counts: dict[str, Json] = {}
        self._envelope: dict[str, Json] = {}
        self._others: set[int] = set()
        """The blocks that are no tool calls of the caller's."""
        self._tools: dict[int, int] = {}
        """Which tool call each block is, both by index."""
        self._arguments_of: dict[int, list[str]] = {}
        """The arguments of each such block, in pieces."""
        self._lost_tool = False
        self._last = ""
        """The kind of the block that began last."""

    def read_event(self, raw: Mapping[str, Json]) -> Iterator[Chunk]:
        """One event, other than ``error``."""
        match raw["type"]:
            case "content_block_delta":
                yield from self._delta(_number(raw["index"]), raw["delta"])
            case "content_block_start":
                yield from self._start(_number(raw["index"]), raw["content_block"])
            case "content_block_stop":
                if self._arguments_of.get(raw["index"]) == []:
                    # A tool called without arguments; those who read OpenAI's shape parse them all the same.
                    yield self._arguments(raw["index"], "{}")
            case "message_start":
                self._head(raw["message"])
            case "message_delta":
                yield from self._message_delta(raw)
            case "message_stop":
                self.done = True
                if self.begun and not self._finished:  # its message_delta was malformed, and skipped
                    yield self._chunk({}, finish_reason="tool_calls" if self._tools else "stop")
            case _:
                pass  # "ping", and what may yet be added

    def read_answer(self, raw: Mapping[str, Json]) -> Iterator[Chunk]:
        """A whole answer, as the events that it would have come in."""
        if raw["type"] != "message":
            raise TypeError("not a message")
        self._head(raw)
        for index, block in enumerate(raw["content"]):
            yield from self._start(index, block)
            if self._arguments_of.get(index) == []:
                yield self._arguments(index, "{}")
        yield from self._message_delta(
            {"delta": {name: raw.get(name) for name in _WHY}, "stop": raw["stop_reason"]}
        )

    def has_whole_tool_calls(self) -> bool:
        """Whether the arguments of all tool calls are JSON, which an event that was skipped may have spoilt."""
        try:
            for pieces in self._arguments_of.values():
                orjson.loads("".join(pieces))
        except orjson.JSONDecodeError:
            return False
        return not self._lost_tool

    def _head(self, message: Mapping[str, Json]) -> None:
        self._counts.update(fields(message.get("usage")))
        if message.get("id"):
            given = _text(message["id"])
            self._envelope["id"] = given if self._native else ids.message_to_openai(given)
        if isinstance(model := message.get("model"), str):
            self._envelope["model"] = model
        if self._native:
            own = {name: value for name, value in message.items() if name not in _MESSAGE_FIELDS}
            self._envelope["native"] = {"message": own, "usage": dict(self._counts)}

    def _start(self, index: int, block: Mapping[str, Json]) -> Iterator[Chunk]:
        kind = _text(block["type"])
        before, self._last = self._last, kind
        if kind != "tool_use":
            self._others.add(index)
        more = {name: value for name, value in block.items() if name not in _FIELDS.get(kind, ())}
        has_more = any(value is not None for value in more.values()) or (
            before == kind and kind != "tool_use"
        )
        event: dict[str, Json] = {}
        if self._native and (has_more or kind not in (*_FIELDS, "redacted_thinking")):
            event = {
                "type": "content_block_start",
                "index": index,
                "content_block": {"type": kind, **more} if kind in _FIELDS else block,
            }
            check_levels(block)
        match kind:
            case "tool_use":
                given = orjson.dumps(block["input"]).decode() if block.get("input") else ""
                call = _call(len(self._tools), block, given)
                self._tools[index] = call["index"]
                self._arguments_of[index] = [given] if given else []
                yield self._chunk({"tool_calls": [call], **({"native": event} if event else {})})
                return
            case "redacted_thinking":
                yield self._chunk({"redacted_thinking": _text(block["data"])})
                return
        if event:
            yield self._chunk({"native": event})
        match kind:
            case "text":
                if block.get("text"):
                    yield self._chunk({"content": _text(block["text"])})
            case "thinking":
                if block.get("thinking"):
                    yield self._chunk({"reasoning_content": _text(block["thinking"])})
                if block.get("signature"):
                    yield self._chunk({"signature": _text(block["signature"])})

    def _delta(self, index: int, delta: Mapping[str, Json]) -> Iterator[Chunk]:
        match delta["type"]:
            case "text_delta":
                yield self._chunk({"content": _text(delta["text"])})
            case "input_json_delta" if index in self._tools:
                if piece := _text(delta["partial_json"]):
                    yield self._arguments(index, piece)
            case "input_json_delta" if index not in self._others:
                self._lost_tool = True
            case "thinking_delta":
                if delta["thinking"]:
                    yield self._chunk({"reasoning_content": _text(delta["thinking"])})
            case "signature_delta":
                yield self._chunk({"signature": _text(delta["signature"])})
            case _ if self._native:
                check_levels(delta)
                event = {"type": "content_block_delta", "index": index, "delta": delta}
                yield self._chunk({"native": event})

    def _arguments(self, index: int, piece: str) -> Chunk:
        self._arguments_of[index].append(piece)
        return self._chunk({"tool_calls": [{"index": self._tools[index], "function": {"arguments": piece}}]})

    def _message_delta(self, event: Mapping[str, Json]) -> Iterator[Chunk]:
        delta, usage = event["delta"], fields(event.get("usage"))
        # The figures are totals; those that have not changed may be left out.
        self._counts.update({name: value for name, value in usage.items() if value is not None})
        if delta.get("stop_reason") is None:
            if "stop" in event:
                raise TypeError("not a whole message")
            return
        reason = _finish(delta["stop_reason"])
        if self._native:
            native = self._envelope.setdefault("native", {})
            native["delta"] = dict(delta)
            if _refusal(delta):  # which guards are to see
                native["delta"]["stop_details"] = {**delta["stop_details"], "explanation": None}
            native["event"] = {
                name: value for name, value in event.items() if name not in ("type", "delta", "usage", "stop")
            }
            native["delta_usage"] = usage
        chunk = self._chunk(_refusal(delta), finish_reason=reason)
        chunk.usage = _usage(self._counts)
        found = delta.get("stop_sequence")
        chunk.stop = found if isinstance(found, str) else None
        self._finished = True
        yield chunk

    def _chunk(self, delta: dict[str, Json], *, finish_reason: str | None = None) -> Chunk:
        envelope, self._envelope = self._envelope, {}
        chunk = Chunk(delta=delta, finish_reason=finish_reason, envelope=envelope)
        if not self.begun:
            # Not before there is content: what fails until then can still be sent elsewhere.
            self.begun = True
            chunk.delta = {"role": "assistant", **delta}
            # What the prompt was is known from the start, and is to be paid for whether or not the end comes.
            chunk.usage = _usage(self._counts)
        return chunk


def _call(index: int, block: Mapping[str, Json], arguments: str) -> dict[str, Json]:
    function = {"name": _text(block["name"]), "arguments": arguments}
    return {
        "index": index,
        "id": ids.call_to_openai(_text(block["id"])),
        "type": "function",
        "function": function,
    }


def _number(value: Json) -> int:
    if type(value) is not int:
        raise TypeError("not a number")
    return value


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _finish(stop_reason: str) -> str:
    return stop_reasons.OPENAI.get(_text(stop_reason), "stop")


def _refusal(message: Mapping[str, Json]) -> dict[str, Json]:
    """The provider's reason for a refusal, where it gives one."""
    details = message.get("stop_details") or {}
    return {"refusal": details["explanation"]} if details.get("explanation") else {}


def _usage(counts: Mapping[str, Json]) -> Usage | None:
    """What is read from and put into the prompt cache is no part of their ``input_tokens``, but is of our prompt.

    None where there is none, or none that can be believed: the gateway then counts by itself.
    """
    if "output_tokens" not in counts or not (
        is_count(counts, "input_tokens") and is_count(counts, "output_tokens")
    ):
        return None
    cached = count(counts, "cache_read_input_tokens")
    hour = count(counts.get("cache_creation"), "ephemeral_1h_input_tokens")
    minutes = count(counts.get("cache_creation"), "ephemeral_5m_input_tokens")
    written = max(count(counts, "cache_creation_input_tokens"), hour + minutes)
    usage = Usage(
        prompt=count(counts, "input_tokens") + cached + written,
        completion=count(counts, "output_tokens"),
        cached=cached,
        reasoning=count(counts.get("output_tokens_details"), "thinking_tokens"),
        cache_write=written,
        cache_write_1h=hour,
    )
    return usage.possible
