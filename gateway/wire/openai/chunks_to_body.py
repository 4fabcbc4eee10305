"""Chunks to the one JSON body of an answer that is not streamed."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from gateway.deltas import join_delta, join_lists, joined
from gateway.types import Call, Chunk, Json, Usage
from gateway.wire.openai.envelope import AnswerFormat, ChoiceParts, envelope_fields
from gateway.wire.openai.usage import write_usage


class OpenAIBodyWriter:
    """Collects a stream of chunks into the one JSON body of a non-streaming answer."""

    def __init__(self, format: AnswerFormat, call: Call) -> None:
        self._format = format
        self._call = call
        self._choices: dict[int, ChoiceParts] = {}
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
        if chunk.delta is None:
            return
        choice = self._choices.get(chunk.index)
        if choice is None:
            choice = self._choices[chunk.index] = ChoiceParts()
        join_delta(choice.delta, choice.thinking.feed(chunk.delta))
        if chunk.logprobs:
            choice.logprobs = choice.logprobs or {}
            join_lists(choice.logprobs, chunk.logprobs)
        if chunk.choice:
            choice.more.update(chunk.choice)
        choice.finish_reason = chunk.finish_reason or choice.finish_reason
        choice.stop = chunk.stop if chunk.finish_reason else choice.stop

    def body(self) -> bytes:
        for choice in self._choices.values():
            choice.delta = joined(choice.delta)
        return orjson.dumps(
            {
                **envelope_fields(self._envelope, self._format.object, self._format.id_prefix, self._call),
                "choices": [
                    self._format.body_choice(index, self._choices[index]) for index in sorted(self._choices)
                ],
                **({} if self._usage is None else {"usage": write_usage(self._usage)}),
                **({} if self._revocation is None else {"tollgate": self._revocation}),
            }
        )
