"""An answer as bytes: recorded from its chunks as they pass, and turned into chunks again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple
from typing import Any, NamedTuple

import orjson

from gateway.deltas import TEXT_FIELDS
from gateway.joined_chunks import JoinedChunk, JoinedChunks
from gateway.types import Candidate, ChatRequest, Chunk, Json, Usage

CLIPPED = "x-tollgate-max-tokens"
"""The header of an answer with fewer tokens than were asked for: another time the limits may allow all of them."""

LONGEST_PIECE = 4096
"""Characters of text in one event: some clients bound an event's length."""

_OWN = frozenset({"id", "created", "model"})
"""Fields that each answer has its own of, even one from a cache; a caller is told the public model."""

_GOOD_ENDS = frozenset({"stop", "length", "tool_calls", "function_call", "eos", "eos_token", "stop_sequence"})
"""OpenAI's reasons to finish, and some servers' synonyms of ``stop``. Others are failures (vLLM's ``abort``,
OpenRouter's ``error``, ``content_filter``) or unknown."""


class Recording(JoinedChunks):
    """An answer so far, and whether it may be kept."""

    __slots__ = ("_finished", "cut", "tools")

    def __init__(self) -> None:
        super().__init__(drop=_OWN)
        self._finished: dict[int, str | None] = {}
        self.cut = False
        self.tools = False

    def add(self, chunk: Chunk) -> None:
        """``chunk`` is no comment."""
        super().add(chunk)
        if chunk.revocation is not None:
            self.cut = True
        if (delta := chunk.delta) is None:
            return
        if chunk.finish_reason is not None or chunk.index not in self._finished:
            self._finished[chunk.index] = chunk.finish_reason
        if len(delta) > 1 or "content" not in delta:
            self.tools = self.tools or bool(delta.get("tool_calls") or delta.get("function_call"))

    @property
    def filtered(self) -> bool:
        return "content_filter" in self._finished.values()

    def is_whole(self, request: ChatRequest) -> bool:
        """Every requested choice has finished, without a failure."""
        reasons = self._finished
        return len(reasons) == request.choices and _GOOD_ENDS.issuperset(reasons.values()) and not self.cut

    def stopped(self) -> bool:
        """Every choice was ended by the model."""
        return all(reason == "stop" for reason in self._finished.values())

    def chunks(self) -> list[Chunk]:
        """All of it so far, for a reader that joins late."""
        found = [item.chunk() for item in self.items]
        if self.usage is not None:
            found.append(Chunk(usage=self.usage, more=True))
        return found

    def pack(self, candidate: Candidate, now: float) -> bytes:
        """``now`` is Unix time. Raises ``orjson.JSONEncodeError`` where an answer is no JSON."""
        usage = self.usage
        packed_usage = None if usage is None else astuple(usage)
        target = candidate.target
        who = [candidate.model, target.backend, target.model]
        packed = orjson.dumps([now, who, packed_usage, [_packed(item) for item in self.items]])
        # What orjson returns keeps the buffer that it was written in, of up to ten times its length.
        return bytes(memoryview(packed))


class CachedAnswer(NamedTuple):
    """One from a cache."""

    stored: float
    """Unix time."""
    model: str
    """The public model that gave it."""
    backend: str
    target_model: str
    usage: Usage | None
    items: list[list[Json]]

    def chunks(self, *, stream: bool) -> Iterator[Chunk]:
        """As a stream each choice begins with its role and ends with a chunk of its own, as OpenAI's do.

        All of them can be sent in one write. The last has the usage.
        """
        last = len(self.items) - 1
        for i, (index, delta, reason, logprobs, envelope, stop, choice) in enumerate(self.items):
            usage = self.usage if i == last else None
            if stream and delta:
                for part in _parts(delta):
                    yield Chunk(index, part, logprobs=logprobs, envelope=envelope, more=True)
                    logprobs = None
                if reason is None and usage is None:
                    continue
                delta = {} if reason is not None else None
            yield Chunk(
                index,
                delta,
                reason,
                stop=stop,
                logprobs=logprobs,
                usage=usage,
                envelope=envelope,
                more=i < last,
                choice=choice,
            )


def unpack(packed: bytes) -> CachedAnswer | None:
    """None for what ``pack`` did not write."""
    try:
        stored, (model, backend, target), packed_usage, items = orjson.loads(packed)
        usage = Usage(*packed_usage) if packed_usage is not None else None
        if not items or any(len(item) != 7 for item in items):
            return None
        return CachedAnswer(float(stored), model, backend, target, usage, items)
    except (orjson.JSONDecodeError, TypeError, ValueError):
        return None


def _parts(delta: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    """A delta as the events of a stream: the role first, then texts, in pieces where they are long."""
    if "role" in delta:
        role: dict[str, Any] = {"role": delta["role"]}
        delta = {name: value for name, value in delta.items() if name != "role"}
        if delta.get("content") in ("", None) and "content" in delta:
            role["content"] = delta["content"]
            delta = {name: value for name, value in delta.items() if name != "content"}
        yield role
        if not delta:
            return
    for name in TEXT_FIELDS:
        text = delta.get(name)
        if isinstance(text, str) and len(text) > LONGEST_PIECE:
            delta = {key: value for key, value in delta.items() if key != name}
            for start in range(0, len(text), LONGEST_PIECE):
                yield {name: text[start : start + LONGEST_PIECE]}
    if delta:
        yield delta


def _packed(item: JoinedChunk) -> list[Json]:
    rest = [item.finish_reason, item.whole_logprobs(), item.envelope, item.stop, item.choice]
    return [item.index, item.whole_delta(), *rest]
