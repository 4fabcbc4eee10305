"""An answer as bytes: recorded from its chunks as they pass, and turned into chunks again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple
from typing import Any, NamedTuple

import orjson

from gateway.types import Candidate, ChatRequest, Chunk, Json, Usage

CLIPPED = "x-tollgate-max-tokens"
"""The header of an answer with fewer tokens than were asked for: another time the limits may allow all of them."""

LONGEST_PIECE = 4096
"""Characters of text in one event: some clients bound an event's length."""

_TEXTS = frozenset({"content", "reasoning_content", "reasoning", "refusal"})
_OWN = frozenset({"id", "created"})
"""Fields that each answer has its own of, even one from a cache."""

_GOOD_ENDS = frozenset({"stop", "length", "tool_calls", "function_call", "eos", "eos_token", "stop_sequence"})
"""OpenAI's reasons to finish, and some servers' synonyms of ``stop``. Others are failures (vLLM's ``abort``,
OpenRouter's ``error``, ``content_filter``) or unknown."""


class _Item:
    """Successive deltas of one choice, joined as long as they add to the same text."""

    __slots__ = ("delta", "envelope", "finish_reason", "index", "kind", "logprobs", "more", "stop")

    def __init__(
        self, index: int, delta: Mapping[str, Json] | None, kind: str | int | None, envelope: dict[str, Json]
    ) -> None:
        self.index = index
        self.delta = delta
        self.kind = kind
        """The text that it adds to: a field's name, or a tool call's index; None where it is more than a text."""
        self.more: list[str] = []
        """The text, from its second piece on."""
        self.finish_reason: str | None = None
        self.stop: str | int | None = None
        self.logprobs: list[Mapping[str, Json]] = []
        self.envelope = envelope

    def joined(self) -> Mapping[str, Json] | None:
        if not self.more or self.delta is None:
            return self.delta
        if isinstance(self.kind, int):
            first = self.delta["tool_calls"][0]["function"]["arguments"]
            function = {"arguments": "".join([first, *self.more])}
            return {"tool_calls": [{"index": self.kind, "function": function}]}
        name = str(self.kind)
        return {**self.delta, name: "".join([self.delta[name], *self.more])}

    def written(self) -> list[Json]:
        rest = [self.finish_reason, _concatenated(self.logprobs), self.envelope, self.stop]
        return [self.index, self.joined(), *rest]


class Recording:
    """An answer so far. It refers to the deltas, and never changes or copies them."""

    __slots__ = (
        "_finished",
        "_items",
        "_kept",
        "_last",
        "_seen",
        "cut",
        "filtered",
        "size",
        "tools",
        "usage",
    )

    def __init__(self) -> None:
        self._items: list[_Item] = []
        self._last: dict[int, _Item] = {}
        self._seen: Mapping[str, Json] = {}
        self._kept: dict[str, Json] = {}
        self._finished: dict[int, str | None] = {}
        self.usage: Usage | None = None
        self.size = 0
        """Characters, approximately, including markup."""
        self.cut = False
        self.filtered = False
        self.tools = False

    def add(self, chunk: Chunk) -> None:
        """``chunk`` is no comment."""
        if chunk.usage is not None:
            self.usage = chunk.usage
        if chunk.revocation is not None:
            self.cut = True
        envelope = chunk.envelope
        if envelope is not self._seen and envelope != self._seen:
            self._seen = envelope
            self._kept = {name: value for name, value in envelope.items() if name not in _OWN}
        index, delta = chunk.index, chunk.delta
        if delta is None:
            self._join_envelope()
            return
        kind, text = _text(delta)
        item = self._last.get(index)
        if (
            item is not None
            and item.finish_reason is None
            and (kind == item.kind and _same_role(delta, item.delta) if kind is not None else not delta)
        ):
            if text:
                item.more.append(text)
                self.size += len(text)
            if self._kept and item.envelope is not self._kept:
                item.envelope = {**item.envelope, **self._kept}
        else:
            item = self._last[index] = _Item(index, delta, kind, self._kept)
            self._items.append(item)
            self.size += _length(delta)
            self._finished.setdefault(index, None)
            self.tools = self.tools or bool(delta.get("tool_calls") or delta.get("function_call"))
        if chunk.logprobs:
            item.logprobs.append(chunk.logprobs)
            self.size += _length(chunk.logprobs)
        if chunk.finish_reason is not None:
            item.finish_reason = self._finished[index] = chunk.finish_reason
            item.stop = chunk.stop
            self.filtered = self.filtered or chunk.finish_reason == "content_filter"

    def is_whole(self, request: ChatRequest) -> bool:
        """Every requested choice has finished, without a failure."""
        reasons = self._finished
        complete = len(reasons) == choices_of(request) and _GOOD_ENDS.issuperset(reasons.values())
        return complete and not self.cut and not self.filtered

    def stopped(self) -> bool:
        """Every choice was ended by the model."""
        return all(reason == "stop" for reason in self._finished.values())

    def chunks(self) -> list[Chunk]:
        """All of it so far, for a reader that joins late."""
        found = [
            Chunk(one[0], one[1], one[2], logprobs=one[3], envelope=one[4], stop=one[5], more=True)
            for one in map(_Item.written, self._items)
        ]
        if self.usage is not None:
            found.append(Chunk(usage=self.usage, more=True))
        return found

    def pack(self, candidate: Candidate, now: float) -> bytes:
        """``now`` is Unix time. Raises ``orjson.JSONEncodeError`` where an answer is no JSON."""
        usage = self.usage
        packed_usage = None if usage is None else astuple(usage)
        target = candidate.target
        who = [candidate.model, target.backend, target.model]
        packed = orjson.dumps([now, who, packed_usage, [item.written() for item in self._items]])
        # What orjson returns keeps the buffer that it was written in, of up to ten times its length.
        return bytes(memoryview(packed))

    def _join_envelope(self) -> None:
        """A chunk without a delta: its envelope's fields join the last item's, or become the first item."""
        if not self._kept:
            return
        if not self._items:
            self._items.append(_Item(0, None, None, self._kept))
        elif (last := self._items[-1]).envelope is not self._kept:
            last.envelope = {**last.envelope, **self._kept}


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
        for i, (index, delta, reason, logprobs, envelope, stop) in enumerate(self.items):
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
            )


def unpack(packed: bytes) -> CachedAnswer | None:
    """None for what ``pack`` did not write."""
    try:
        stored, (model, backend, target), packed_usage, items = orjson.loads(packed)
        usage = Usage(*packed_usage) if packed_usage is not None else None
        if not items or any(len(item) != 6 for item in items):
            return None
        return CachedAnswer(float(stored), model, backend, target, usage, items)
    except (orjson.JSONDecodeError, TypeError, ValueError):
        return None


def choices_of(request: ChatRequest) -> int:
    """How many choices an answer has: ``n`` for each prompt; of embeddings, one for each."""
    prompt = request.prompt
    prompts = 1
    if request.messages is None and isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompts = len(prompt)
    return prompts if request.embeds else prompts * request.n


def _text(delta: Mapping[str, Json]) -> tuple[str | int | None, str]:
    """The one text that a delta adds to, and what it adds; the delta may have the role as well."""
    if len(delta) != 1:
        if len(delta) == 2 and "role" in delta and isinstance(text := delta.get("content"), str):
            return "content", text
        return None, ""
    if (content := delta.get("content")).__class__ is str:  # nearly all of them
        return "content", content
    ((name, value),) = delta.items()
    if name in _TEXTS and isinstance(value, str):
        return name, value
    if name == "tool_calls" and isinstance(value, list) and len(value) == 1:
        match value[0]:
            case {"index": int(index), "function": {"arguments": str(text), **others}, **rest} if not (
                others or rest
            ):
                return index, text
    return None, ""


def _same_role(delta: Mapping[str, Json], before: Mapping[str, Json] | None) -> bool:
    """Whether ``delta`` has no role, or the same."""
    return len(delta) == 1 or (before is not None and delta["role"] == before.get("role"))


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
    for name in ("reasoning_content", "reasoning", "content"):
        text = delta.get(name)
        if isinstance(text, str) and len(text) > LONGEST_PIECE:
            delta = {key: value for key, value in delta.items() if key != name}
            for start in range(0, len(text), LONGEST_PIECE):
                yield {name: text[start : start + LONGEST_PIECE]}
    if delta:
        yield delta


def _concatenated(logprobs: list[Mapping[str, Json]]) -> Json:
    """Lists under the same name follow one another."""
    if len(logprobs) < 2:
        return logprobs[0] if logprobs else None
    whole: dict[str, Json] = {}
    for one in logprobs:
        for name, value in one.items():
            if isinstance(value, list):
                joined = whole.get(name)
                if not isinstance(joined, list):
                    joined = whole[name] = []  # a copy, as the chunk's own list must not change
                joined.extend(value)
            elif value is not None or name not in whole:
                whole[name] = value
    return whole


def _length(value: Json) -> int:
    """Characters of a value's texts, at least."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(name) + 4 + _length(one) for name, one in value.items())
    if isinstance(value, list | tuple):
        return sum(2 + _length(one) for one in value)
    return 4
