"""The one JSON object in an answer of a model that was prompted for one, without constrained decoding."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import orjson

from gateway.errors import UpstreamFailed
from gateway.types import Chunk

_NOTABLE = re.compile(r'\\.?|["{}]', re.DOTALL)


class JsonObjectFilter:
    """Passes on the object, without text or a code fence around it."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._kept: list[str] = []
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._over = False
        self._calls = False

    def feed(self, chunk: Chunk) -> Iterator[Chunk]:
        """Raises ``UpstreamFailed`` at the end of an answer that holds no JSON object, or a broken one."""
        delta = chunk.delta
        if delta:
            self._calls = self._calls or bool(delta.get("tool_calls"))
            text = delta.get("content")
            if isinstance(text, str) and text:
                kept = self._object(text)
                rest = {name: value for name, value in delta.items() if name != "content"}
                chunk = replace(chunk, delta={**rest, "content": kept} if kept else rest)
        if chunk.finish_reason == "stop" and not self._calls:
            self._check()
        if chunk.delta or chunk.delta is None or chunk.finish_reason is not None:
            yield chunk

    def _object(self, text: str) -> str:
        """What of ``text`` belongs to the object."""
        start = 0
        if not self._depth:
            start = -1 if self._over else text.find("{")
            if start < 0:
                return ""
        end = self._end(text, start)
        self._kept.append(text[start:end])
        return self._kept[-1]

    def _end(self, text: str, start: int) -> int:
        if self._escaped:
            self._escaped = False
            start += 1
        for match in _NOTABLE.finditer(text, start):
            sign = match[0]
            if sign.startswith("\\"):
                self._escaped = len(sign) == 1
            elif sign == '"':
                self._in_string = not self._in_string
            elif not self._in_string:
                self._depth += 1 if sign == "{" else -1
                if not self._depth:
                    self._over = True
                    return match.end()
        return len(text)

    def _check(self) -> None:
        try:
            orjson.loads("".join(self._kept))
        except orjson.JSONDecodeError:
            raise UpstreamFailed(
                f"Backend '{self._backend}' was asked for a JSON object and answered with something else.",
                code="upstream_malformed",
            ) from None
