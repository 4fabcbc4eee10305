"""Anthropic's answers as chunks in OpenAI's delta shape.

The events and their order: https://platform.claude.com/docs/en/build-with-claude/streaming. What goes wrong in a
body or event raises ``KeyError``, ``TypeError`` or ``AttributeError``, for the caller to skip or to refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from gateway.types import Chunk, Json, Usage
from gateway.wire.anthropic import stop_reasons


class MessageReader:
    """Reads one answer, event by event."""

    def __init__(self) -> None:
        self.done = False
        """The end has come."""
        self.begun = False
        """Something has been said, if only why there is nothing to say."""
        self._finished = False
        self._counts: dict[str, Json] = {}
        self._envelope: dict[str, Json] = {}
        self._others: set[int] = set()
        """The blocks that are no tool calls of the caller's."""
        self._tools: dict[int, int] = {}
        """Which tool call each block is, both by index."""
        self._said: dict[int, list[str]] = {}
        """The arguments of each such block, in pieces."""
        self._lost_tool = False

    def read_event(self, raw: Mapping[str, Json]) -> Iterator[Chunk]:
        """One event, other than ``error``."""
        match raw["type"]:
            case "content_block_delta":
                yield from self._delta(raw["index"], raw["delta"])
            case "content_block_start":
                yield from self._start(raw["index"], raw["content_block"])
            case "content_block_stop":
                if self._said.get(raw["index"]) == []:
                    # A tool called without arguments; those who read OpenAI's shape parse them all the same.
                    yield self._arguments(raw["index"], "{}")
            case "message_start":
                message = raw["message"]
                self._counts.update(message.get("usage") or {})
                if message.get("id"):
                    self._envelope = {"id": message["id"]}
            case "message_delta":
                yield from self._news(raw["delta"], raw.get("usage"))
            case "message_stop":
                self.done = True
                if self.begun and not self._finished:  # its news was malformed, and skipped
                    yield self._say({}, finish_reason="tool_calls" if self._tools else "stop")
            case _:
                pass  # "ping", and what may yet be added

    def read_answer(self, raw: Mapping[str, Json]) -> Chunk:
        """A whole answer."""
        if raw["type"] != "message":
            raise TypeError("not a message")
        said: dict[str, Json] = {"role": "assistant"}
        for block in raw["content"]:
            match block["type"]:
                case "text":
                    said["content"] = said.get("content", "") + block["text"]
                case "thinking":
                    said["reasoning_content"] = said.get("reasoning_content", "") + block["thinking"]
                case "tool_use":
                    calls = said.setdefault("tool_calls", [])
                    arguments = orjson.dumps(block.get("input") or {}).decode()
                    calls.append(_call(len(calls), block, arguments))
        envelope = {"id": raw["id"]} if raw.get("id") else {}
        reason = _finish(raw["stop_reason"])
        said |= _refusal(raw)
        envelope |= _stop_sequence(raw)
        return Chunk(
            delta=said, finish_reason=reason, usage=_usage(raw.get("usage") or {}), envelope=envelope
        )

    def has_whole_tool_calls(self) -> bool:
        """Whether the arguments of all tool calls are JSON, which an event that was skipped may have spoilt."""
        try:
            for pieces in self._said.values():
                orjson.loads("".join(pieces))
        except orjson.JSONDecodeError:
            return False
        return not self._lost_tool

    def _start(self, index: int, block: Mapping[str, Json]) -> Iterator[Chunk]:
        if block["type"] != "tool_use":
            self._others.add(index)
        match block["type"]:
            case "text":
                if block.get("text"):
                    yield self._say({"content": _text(block["text"])})
            case "thinking":
                if block.get("thinking"):
                    yield self._say({"reasoning_content": _text(block["thinking"])})
            case "tool_use":
                given = orjson.dumps(block["input"]).decode() if block.get("input") else ""
                call = _call(len(self._tools), block, given)
                self._tools[index] = call["index"]
                self._said[index] = [given] if given else []
                yield self._say({"tool_calls": [call]})

    def _delta(self, index: int, delta: Mapping[str, Json]) -> Iterator[Chunk]:
        match delta["type"]:
            case "text_delta":
                yield self._say({"content": _text(delta["text"])})
            case "input_json_delta":
                if index in self._tools:
                    if piece := _text(delta["partial_json"]):
                        yield self._arguments(index, piece)
                elif index not in self._others:
                    self._lost_tool = True
            case "thinking_delta":
                if delta["thinking"]:
                    yield self._say({"reasoning_content": _text(delta["thinking"])})

    def _arguments(self, index: int, piece: str) -> Chunk:
        self._said[index].append(piece)
        return self._say({"tool_calls": [{"index": self._tools[index], "function": {"arguments": piece}}]})

    def _news(self, delta: Mapping[str, Json], usage: Mapping[str, Json] | None) -> Iterator[Chunk]:
        # The figures are totals; those that have not changed may be left out.
        self._counts.update({name: value for name, value in (usage or {}).items() if value is not None})
        if delta.get("stop_reason") is None:
            return
        reason = _finish(delta["stop_reason"])
        self._envelope |= _stop_sequence(delta)
        chunk = self._say(_refusal(delta), finish_reason=reason)
        chunk.usage = _usage(self._counts)
        self._finished = True
        yield chunk

    def _say(self, delta: dict[str, Json], *, finish_reason: str | None = None) -> Chunk:
        if not self.begun:
            # Not before there is something to say: what fails until then can still be asked elsewhere.
            self.begun = True
            delta = {"role": "assistant", **delta}
        envelope, self._envelope = self._envelope, {}
        return Chunk(delta=delta, finish_reason=finish_reason, envelope=envelope)


def _call(index: int, block: Mapping[str, Json], arguments: str) -> dict[str, Json]:
    function = {"name": _text(block["name"]), "arguments": arguments}
    return {"index": index, "id": _text(block["id"]), "type": "function", "function": function}


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


def _stop_sequence(message: Mapping[str, Json]) -> dict[str, Json]:
    found = message.get("stop_sequence")
    return {"stop_sequence": found} if found is not None else {}


def _usage(counts: Mapping[str, Json]) -> Usage | None:
    """What is read from and put into the prompt cache is no part of their ``input_tokens``, but is of our prompt."""
    if "output_tokens" not in counts:
        return None
    cached = _count(counts, "cache_read_input_tokens")
    return Usage(
        prompt=_count(counts, "input_tokens") + cached + _count(counts, "cache_creation_input_tokens"),
        completion=_count(counts, "output_tokens"),
        cached=cached,
        reasoning=_count(counts.get("output_tokens_details"), "thinking_tokens"),
    )


def _count(counts: Json, name: str) -> int:
    value = counts.get(name) if isinstance(counts, dict) else None
    return value if type(value) is int and value > 0 else 0
