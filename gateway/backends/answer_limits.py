"""How much structure a server's answer may have: what has more is the server's fault, and costs the loop seconds.

Texts are not counted, only what holds them: a long one is soon read, a hundred thousand short ones are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import orjson

from gateway.errors import UpstreamFailed
from gateway.policy.schema.limits import RequestLimits
from gateway.types import ChatRequest, Chunk, Json
from gateway.wire.json_body import is_too_deep

MAX_BODY = 64 * 2**20
"""Bytes in a whole answer; more is not an answer."""
MAX_STREAM = 4 * MAX_BODY
"""The same of each choice of a stream, whose events repeat much: half a million tokens, or more."""
LOGPROBS = 8
"""Times as many values as usual may come where log-probabilities were asked for: up to 20 alternatives a token."""
A_CHOICE, A_VECTOR = 64, 4096
"""Values that come with each choice and each vector that was asked for, beside ``limits.answer_values``."""
FEW = 2**13
"""Bytes of an event that can hold no more values than are soon read."""
_NUMBERS = 4
"""So many in a list cost as much as one other value."""


class AnswerLimits:
    """What has come of one answer, beside its texts. What is too much raises ``UpstreamFailed``.

    ``choices`` are those that were asked for: ``n`` for each prompt; of embeddings, one for each text. ``size`` is in
    bytes.
    """

    def __init__(self, backend: str, request: ChatRequest, limits: RequestLimits) -> None:
        self.choices = request.choices
        self._backend = backend
        self._request = request
        self._limits = limits
        self._uncounted: list[bytes] = []

    size = _values = _blocks = _empty = 0

    @cached_property
    def _indices(self) -> set[int]:
        """Of the choices that have begun."""
        return set()

    @cached_property
    def _calls(self) -> set[tuple[int, int]]:
        """By the indices of their choice and their own."""
        return set()

    @cached_property
    def _times(self) -> int:
        return LOGPROBS if _has_logprobs(self._request) else 1

    @cached_property
    def _most_streamed(self) -> int:
        return MAX_STREAM * self._times * self.choices

    @cached_property
    def _most_values(self) -> int:
        each = A_VECTOR if self._request.embeds else A_CHOICE
        return self._limits.answer_values * self._times + self.choices * each

    def read(self, part: bytes) -> None:
        """Part of a whole answer's JSON. It is counted before it is parsed, as each value takes 50 bytes or more."""
        self.size += len(part)
        if self.size > MAX_BODY:
            raise self._failed(f"sent an answer of over {MAX_BODY} bytes")
        self._uncounted.append(part)
        if self.size <= self._limits.answer_values or self.size <= self._most_values:
            return  # each takes a byte
        self._values += sum(map(_values, self._uncounted))
        self._uncounted.clear()
        if self._values > self._most_values:
            raise self._too_much(f"an answer of more than {self._most_values} values", "limits.answer_values")

    def read_event(self, data: bytes) -> None:
        """The JSON of one event of a stream."""
        self.size += len(data)
        if self.size > MAX_STREAM and self.size > self._most_streamed:
            raise self._failed(f"streamed an answer of over {self._most_streamed} bytes")
        if len(data) > FEW and _values(data) > self._most_values:
            raise self._too_much(f"an event of more than {self._most_values} values", "limits.answer_values")

    def parsed(self, data: bytes) -> Any:
        """The JSON of an event or of a whole answer. Raises ``orjson.JSONDecodeError``.

        What lies deeper than bodies may would be too deep for who walks through it: counts, guards and caches.
        """
        value, most = orjson.loads(data), self._limits.depth
        if len(data) > 2 * most and is_too_deep(data, value, most):
            raise self._failed(f"sent an answer that is nested more than {most} levels deep")
        return value

    def take(self, chunk: Chunk, position: int) -> bool:
        """The chunk at this ``position`` among those of one body or event: none has two of one choice.

        Gives whether it brings anything.
        """
        delta = self.check(chunk, position)
        if delta is None:
            return True
        content = delta.get("content")
        if content and type(content) is str and len(delta) == 1:  # nearly all of them
            return True
        return (
            has_content(delta)
            or chunk.finish_reason is not None
            or chunk.logprobs is not None
            or bool(chunk.choice and any(chunk.choice.values()))
        )

    def check_whole(self, chunks: Sequence[Chunk]) -> None:
        """All of a whole answer's, one for each choice."""
        if len(chunks) > self.choices:
            raise self._surplus()
        for chunk in chunks:
            delta = chunk.delta
            if delta is not None and (delta.get("tool_calls") or type(delta.get("content")) is list):
                self._count_delta(chunk.index, delta)

    def check(self, chunk: Chunk, position: int) -> Mapping[str, Json] | None:
        """The delta of this chunk, which is as ``take`` has it."""
        delta = chunk.delta
        if delta is None:
            return None
        if position >= self.choices or chunk.index not in self._indices:
            self._begin(chunk.index, position)
        self._count_delta(chunk.index, delta)
        return delta

    def _count_delta(self, choice: int, delta: Mapping[str, Json]) -> None:
        if calls := delta.get("tool_calls"):
            self._calls.update((choice, call.get("index", i)) for i, call in enumerate(calls))
            self._count_parts(max(len(self._calls), len(calls)))
        if isinstance(content := delta.get("content"), list):
            self._count_parts(len(content))

    def begin_blocks(self, count: int = 1) -> None:
        """Blocks of an Anthropic message."""
        self._blocks += count
        self._count_parts(self._blocks)

    def pass_over(self, count: int = 1) -> None:
        """Events that bring nothing: comments, pings, empty deltas, nonsense."""
        self._empty += count
        if self._empty > self._limits.empty_events:
            raise self._too_much(
                f"more than {self._limits.empty_events} events without content", "limits.empty_events"
            )

    def _begin(self, index: int, position: int) -> None:
        self._indices.add(index)
        if position >= self.choices or len(self._indices) > self.choices:
            raise self._surplus()

    def _surplus(self) -> UpstreamFailed:
        return self._failed(
            f"sent more answers than the {self.choices} that it was asked for. Its operator should see why; until "
            "then ask another model"
        )

    def _count_parts(self, count: int) -> None:
        if count > self._limits.answer_parts:
            raise self._too_much(
                f"an answer of more than {self._limits.answer_parts} tool calls or parts",
                "limits.answer_parts",
            )

    def _too_much(self, what: str, key: str) -> UpstreamFailed:
        return self._failed(
            f"sent {what}. Its operator should see why; if it is meant so, raise '{key}' in the policy"
        )

    def _failed(self, what: str) -> UpstreamFailed:
        return UpstreamFailed(f"Backend '{self._backend}' {what}.", code="upstream_malformed")


def has_content(delta: Mapping[str, Json]) -> bool:
    """Whether it holds any content: a role alone is none."""
    return any(value for name, value in delta.items() if name != "role")


def _values(data: bytes) -> int:
    """Texts, names, lists and objects, and a part of all numbers. Signs within texts count, too: they are few."""
    return data.count(b"{") + data.count(b"[") + data.count(b'"') // 2 + data.count(b",") // _NUMBERS


def _has_logprobs(request: ChatRequest) -> bool:
    # ``logprobs: 0`` of a plain completion asks for those of the tokens themselves.
    params = request.params
    return params.get("logprobs") not in _NO or params.get("prompt_logprobs") not in _NO


_NO = (None, False)
