"""Answers of Converse and events of ConverseStream as chunks in OpenAI's delta shape.

What goes wrong in them raises ``KeyError``, ``TypeError`` or ``AttributeError``, for the caller to skip or to refuse.
A signed thought is followed by ``{"signature": …}``, and one that is hidden comes as ``{"redacted_thinking": …}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from gateway.types import Chunk, Json, Usage
from gateway.wire.token_counts import count, fields, is_count

FINISH: Mapping[str, str] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "content_filtered": "content_filter",
    "guardrail_intervened": "content_filter",
}
"""OpenAI's ``finish_reason`` for each ``stopReason``."""
GARBLED = frozenset({"malformed_model_output", "malformed_tool_use"})
"""Reasons that mean that the model failed; another attempt may not."""
_BESIDE = ("additionalModelResponseFields", "trace", "performanceConfig", "serviceTier")
"""Of an answer: what is passed on as ``extra_content.bedrock`` of the choice."""


class BedrockChunkReader:
    """Reads one answer, event by event or whole."""

    def __init__(self) -> None:
        self.stop_reason = ""
        self.done = False
        """The figures have come, with which an answer ends."""
        self.begun = False
        self._tools: dict[int, int] = {}
        """Which tool call each block is, both by index."""
        self._arguments_of: dict[int, list[str]] = {}
        self._others: set[int] = set()
        self._lost_tool = False

    def read_event(self, kind: str, raw: Mapping[str, Json]) -> Iterator[Chunk]:
        """One event of a stream, of this ``:event-type``."""
        match kind:
            case "contentBlockDelta":
                yield from self._delta(_number(raw["contentBlockIndex"]), raw["delta"])
            case "contentBlockStart":
                yield from self._start(_number(raw["contentBlockIndex"]), raw.get("start") or {})
            case "contentBlockStop":
                if self._arguments_of.get(raw["contentBlockIndex"]) == []:
                    yield self._arguments(raw["contentBlockIndex"], "{}")
            case "messageStop":
                yield self._stop(raw)
            case "metadata":
                self.done = True
                beside = _beside(raw)
                if (usage := read_usage(raw.get("usage"))) is not None or beside:
                    yield Chunk(delta={} if beside else None, usage=usage, choice=beside)
            case _:
                pass  # "messageStart", and what may yet be added

    def read_answer(self, raw: Mapping[str, Json]) -> Iterator[Chunk]:
        """A whole answer, as the events that it would have come in."""
        for index, block in enumerate(raw["output"]["message"]["content"]):
            yield from self._block(index, block)
        last = self._stop(raw)
        last.usage = read_usage(raw.get("usage"))
        yield last

    def has_whole_tool_calls(self) -> bool:
        """Whether the arguments of all tool calls are JSON, which an event that was skipped may have spoilt."""
        try:
            for pieces in self._arguments_of.values():
                orjson.loads("".join(pieces))
        except orjson.JSONDecodeError:
            return False
        return not self._lost_tool

    def _block(self, index: int, block: Mapping[str, Json]) -> Iterator[Chunk]:
        match block:
            case {"toolUse": call}:
                yield from self._start(index, block)
                arguments = call.get("input") or {}
                if not isinstance(arguments, dict):
                    raise TypeError("not an object")
                yield self._arguments(index, orjson.dumps(arguments).decode())
            case {"reasoningContent": {"reasoningText": thought}}:
                yield from self._delta(index, {"reasoningContent": {"text": thought.get("text") or ""}})
                if thought.get("signature"):
                    yield from self._delta(index, {"reasoningContent": {"signature": thought["signature"]}})
            case {"citationsContent": cited}:
                for one in cited.get("content") or ():
                    yield from self._delta(index, one)
            case _:
                yield from self._delta(index, block)

    def _start(self, index: int, start: Mapping[str, Json]) -> Iterator[Chunk]:
        if (call := start.get("toolUse")) is None:
            self._others.add(index)
            return
        self._tools[index] = len(self._tools)
        self._arguments_of[index] = []
        function = {"name": _text(call["name"]), "arguments": ""}
        made = {
            "index": self._tools[index],
            "id": _text(call["toolUseId"]),
            "type": "function",
            "function": function,
        }
        yield self._chunk({"tool_calls": [made]})

    def _delta(self, index: int, delta: Mapping[str, Json]) -> Iterator[Chunk]:
        match delta:
            case {"text": text}:
                self._others.add(index)
                if _text(text):
                    yield self._chunk({"content": text})
            case {"toolUse": {"input": piece}} if index in self._tools:
                if _text(piece):
                    yield self._arguments(index, piece)
            case {"toolUse": _}:
                self._lost_tool = self._lost_tool or index not in self._others
            case {"reasoningContent": {"text": text}}:
                if _text(text):
                    yield self._chunk({"reasoning_content": text})
            case {"reasoningContent": {"signature": signature}}:
                yield self._chunk({"signature": _text(signature)})
            case {"reasoningContent": {"redactedContent": data}}:
                yield self._chunk({"redacted_thinking": _text(data)})
            case _:
                pass  # citations, and what may yet be added

    def _arguments(self, index: int, piece: str) -> Chunk:
        self._arguments_of[index].append(piece)
        return self._chunk({"tool_calls": [{"index": self._tools[index], "function": {"arguments": piece}}]})

    def _stop(self, raw: Mapping[str, Json]) -> Chunk:
        self.stop_reason = _text(raw["stopReason"])
        chunk = self._chunk({})
        chunk.finish_reason = FINISH.get(self.stop_reason, "stop")
        chunk.choice = _beside(raw)
        return chunk

    def _chunk(self, delta: dict[str, Json]) -> Chunk:
        if not self.begun:
            self.begun = True
            delta = {"role": "assistant", **delta}
        return Chunk(delta=delta)


def read_usage(raw: Json) -> Usage | None:
    """What is read from and put into the prompt cache is no part of ``inputTokens``, but is of our prompt.

    None where there is none, or none that can be believed: the gateway then counts by itself.
    """
    if not isinstance(raw, dict) or not (is_count(raw, "inputTokens") and is_count(raw, "outputTokens")):
        return None
    if "outputTokens" not in raw:
        return None
    cached, written = count(raw, "cacheReadInputTokens"), count(raw, "cacheWriteInputTokens")
    details = raw.get("cacheDetails")
    hours = [one for one in details if fields(one).get("ttl") == "1h"] if isinstance(details, list) else []
    usage = Usage(
        prompt=count(raw, "inputTokens") + cached + written,
        completion=count(raw, "outputTokens"),
        cached=cached,
        cache_write=written,
        cache_write_1h=min(written, sum(count(one, "inputTokens") for one in hours)),
    )
    return usage.possible


def _beside(raw: Mapping[str, Json]) -> dict[str, Json] | None:
    found = {name: raw[name] for name in _BESIDE if raw.get(name)}
    return {"extra_content": {"bedrock": found}} if found else None


def _number(value: Json) -> int:
    if type(value) is not int:
        raise TypeError("not a number")
    return value


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value
