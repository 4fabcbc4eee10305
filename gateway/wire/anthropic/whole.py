"""Chunks as one message of Anthropic's Messages API (https://platform.claude.com/docs/en/api/messages)."""

from __future__ import annotations

import orjson

from gateway.types import Call, Chunk, Json
from gateway.wire.anthropic.news import TEXT, THINKING, News, pieces


class Whole:
    """Collects a stream of chunks into the one message of a non-streaming answer."""

    def __init__(self, call: Call) -> None:
        self._news = News(call)
        self._said: list[tuple[str, list[str]]] = []
        """Blocks of words, each in its pieces, with tool calls at the places where they began."""
        self._tools: dict[int, dict[str, str]] = {}

    def add(self, chunk: Chunk) -> None:
        self._news.hear(chunk)
        delta = chunk.delta
        if delta is None or chunk.index:
            return
        for kind, words in pieces(delta):
            self._say(kind, words)
        if refusal := delta.get("refusal"):
            if chunk.finish_reason == "content_filter":
                self._news.refusal = refusal
            else:
                self._say(TEXT, refusal)
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
        content = [self._block(kind, parts) for kind, parts in self._said]
        return orjson.dumps(
            self._news.head(content, self._news.total_usage())
            | self._news.stop(has_tools=bool(self._tools))
            | self._news.own_fields()
        )

    def _block(self, kind: str, parts: list[str]) -> dict[str, Json]:
        if kind != "tool_use":
            block = {"type": kind, kind: "".join(parts)}
            return block | {"signature": ""} if kind == THINKING else block
        index = int(parts[0])
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
