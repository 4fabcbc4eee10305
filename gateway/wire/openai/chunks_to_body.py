"""Chunks to the one JSON body of an answer that is not streamed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import starmap

import orjson

from gateway.types import Call, Chunk, Json, Usage
from gateway.wire.openai.envelope import JOINED, AnswerFormat, JoinedChoice, envelope_fields
from gateway.wire.openai.usage import write_usage


class OpenAIBodyWriter:
    """Collects a stream of chunks into the one JSON body of a non-streaming answer."""

    def __init__(self, format: AnswerFormat, call: Call) -> None:
        self._format = format
        self._call = call
        self._choices: dict[int, Chunk | JoinedChoice] = {}
        """Nobody changes a chunk."""
        self._usage: Usage | None = None
        self._envelope: dict[str, Json] = {}
        self._revocation: Mapping[str, Json] | None = None

    def add(self, chunk: Chunk) -> None:
        if chunk.envelope:
            self._envelope.update(chunk.envelope)
        if chunk.usage is not None:
            self._usage = chunk.usage
        if chunk.revocation is not None:
            self._revocation = chunk.revocation
        delta, index = chunk.delta, chunk.index
        if delta is None:
            return
        before = self._choices.get(index)
        if before is None and JOINED.isdisjoint(delta):
            self._choices[index] = chunk
            return
        if not isinstance(before, JoinedChoice):
            self._choices[index] = whole = JoinedChoice()
            if before is not None:
                whole.add(before)
            before = whole
        before.add(chunk)

    def body(self) -> bytes:
        form = self._format
        body = envelope_fields(self._envelope, form.object, form.id_prefix, self._call)
        body["choices"] = [*starmap(form.body_choice, sorted(self._choices.items()))]
        if self._usage is not None:
            body["usage"] = write_usage(self._usage)
        if self._revocation is not None:
            body["tollgate"] = self._revocation
        return orjson.dumps(body)
