"""An answer of many vectors, parsed as it comes: 2,048 of them at once would hold the loop for half a second."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson

from gateway.backends.openai_decoder import OpenAIBodyDecoder
from gateway.types import Call, Chunk
from gateway.wire.dialect import Dialect

MOST_KEPT = 2**20
"""Bytes that are looked through again with the next that come, for the end of a vector; none that is real is longer."""
_OBJECT = re.compile(rb'\{[^{}"]*+(?:"[^"\\]*+"[^{}"]*+)*+\}')
"""An object without others in it, as vectors are."""
_PLACE = ""
"""The one name in an object that replaces a vector in the rest of the answer; its value is the vector's number."""


class VectorsDecoder(OpenAIBodyDecoder):
    """What of it has the form of a vector is taken out and parsed; the rest is read at the end, as any body."""

    def __init__(self, backend: str, dialect: Dialect, call: Call) -> None:
        super().__init__(backend, dialect, call)
        self._kept = b""
        self._vectors: dict[int, Any] = {}

    def feed(self, part: bytes) -> Sequence[Chunk]:
        self._limits.read(part)
        self._kept += part
        if b"}" in part:
            self._take_vectors()
        if len(self._kept) > MOST_KEPT:
            self._parts.append(self._kept)
            self._kept = b""
        return ()

    def _take_vectors(self) -> None:
        end = 0
        for match in _OBJECT.finditer(self._kept):
            if b'"embedding"' not in match[0]:
                continue
            try:
                vector = orjson.loads(match[0])
            except orjson.JSONDecodeError:
                continue  # the rest will be no JSON either
            number = len(self._vectors)
            self._vectors[number] = vector
            self._parts += (self._kept[end : match.start()], orjson.dumps({_PLACE: number}))
            end = match.end()
        self._kept = self._kept[end:]

    def _parsed(self) -> Any:
        self._parts.append(self._kept)
        raw = super()._parsed()
        raw["data"] = [
            self._vectors[one[_PLACE]] if isinstance(one, dict) and _PLACE in one else one
            for one in raw.get("data") or ()
        ]
        return raw
