"""Answers that their callers want whole, asked for as streams: a server that has fallen silent is known by that.

How long a silence may be is for the policy to say. Where it says nothing, a whole answer is asked for as one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from gateway.backends.answer_limits import MAX_BODY
from gateway.errors import BadRequest, GatewayError, UpstreamFailed
from gateway.types import Call, ChatRequest, Chunk, Chunks, Json, Usage

WHOLE_ONLY = frozenset({"audio", "best_of", "prompt_logprobs", "use_beam_search"})
"""Parameters that servers do not take for streams, or answer otherwise there."""

_STREAM = re.compile(r"\bstream(s|ed|ing|_options)?\b", re.IGNORECASE)
_A_PIECE, _A_CHUNK = 64, 1024
"""Bytes that the smallest piece of a text, and a chunk that is kept by itself, take at least."""
_TEXTS = frozenset({"content", "refusal", "reasoning", "reasoning_content"})
"""Of a delta: what comes in pieces to be put together."""


class StreamCollector:
    """One backend's. ``enabled`` where its streams say all that its whole answers do."""

    def __init__(self, backend: str, *, enabled: bool) -> None:
        self._backend = backend
        self._enabled = enabled
        self._whole: set[str] = set()
        """Models that do not stream, or whose streams do not tell the usage: they are asked for whole answers."""

    def applies(self, call: Call, request: ChatRequest, model: str) -> bool:
        return (
            self._enabled
            and not (request.stream or request.embeds)
            and call.timeouts.bounds_silence
            and model not in self._whole
            and WHOLE_ONLY.isdisjoint(request.params)
            and request.params.get("modalities") in (None, ["text"])
        )

    async def ask(self, request: ChatRequest, model: str, send: Callable[[ChatRequest], Chunks]) -> Chunks:
        """What ``send`` streams, once it is whole. Nothing has been heard of an answer that breaks off."""
        answer = CollectedAnswer()
        try:
            async with aclosing(send(replace(request, stream=True))) as chunks:
                async for chunk in chunks:
                    answer.add(chunk)
                    if answer.size > MAX_BODY:
                        raise UpstreamFailed(
                            f"Backend '{self._backend}' sent an answer of over {MAX_BODY} bytes.",
                            code="upstream_malformed",
                        )
        except GatewayError as error:
            refused = isinstance(error, BadRequest) and _STREAM.search(f"{error.param} {error.message}")
            if answer.begun or not refused:
                error.unread = [*answer.chunks()]
                raise
        else:
            if answer.usage is None:
                self._whole.add(model)
            for chunk in answer.chunks():
                yield chunk
            return
        # OpenAI streams some models to verified organisations only; other servers have no streams at all.
        async with aclosing(send(request)) as chunks:
            async for chunk in chunks:
                yield chunk
        self._whole.add(model)


class CollectedAnswer:
    """One answer. Pieces of a text become one as they come, so that it takes no more room than it would have whole."""

    def __init__(self) -> None:
        self.begun = False
        self.size = 0
        """About as many bytes as it takes here."""
        self.usage: Usage | None = None
        self._choices: dict[int, list[_Run]] = {}
        self._rest: list[Chunk] = []

    def add(self, chunk: Chunk) -> None:
        self.begun = True
        if chunk.usage is not None:
            self.usage = chunk.usage
            chunk = replace(chunk, usage=None)
        if chunk.delta is None:
            self.size += _A_CHUNK + len(orjson.dumps(dict(chunk.envelope)))
            self._rest.append(chunk)
            return
        runs = self._choices.setdefault(chunk.index, [])
        text = _text(chunk)
        if text is None or chunk.logprobs is not None:
            self.size += len(orjson.dumps((chunk.delta, chunk.logprobs)))
        if text is None:
            self._keep(_Run(chunk, ""), runs)
            return
        kind, words = text
        self.size += _A_PIECE + len(words)
        if not (runs and runs[-1].takes(kind, chunk)):
            self._keep(_Run(chunk, kind), runs)
        runs[-1].add(words, chunk.logprobs)

    def _keep(self, run: _Run, runs: list[_Run]) -> None:
        self.size += _A_CHUNK + len(orjson.dumps(dict(run.first.envelope)))
        runs.append(run)

    def chunks(self) -> Iterator[Chunk]:
        """The answer in few chunks, choice by choice; the usage is on the last."""
        whole = [chunk for runs in self._choices.values() for chunk in _put_together(runs)]
        for chunk in (*whole, *self._rest):
            chunk.more = True
        for last in (*whole, *self._rest)[-1:]:
            last.more, last.usage = False, self.usage
        yield from whole
        yield from self._rest


@dataclass(slots=True)
class _Run:
    """A chunk, or pieces of one text that followed each other."""

    first: Chunk
    kind: str
    """Of text; empty where it is anything else."""
    words: list[str] = field(default_factory=list)
    logprobs: dict[str, Json] = field(default_factory=dict)

    def takes(self, kind: str, chunk: Chunk) -> bool:
        return self.kind == kind and (not chunk.envelope or chunk.envelope == self.first.envelope)

    def add(self, words: str, logprobs: Mapping[str, Json] | None) -> None:
        self.words.append(words)
        for name, value in (logprobs or {}).items():
            known = self.logprobs.get(name)
            if isinstance(known, list) and isinstance(value, list):
                known.extend(value)
            elif value is not None or name not in self.logprobs:
                self.logprobs[name] = [*value] if isinstance(value, list) else value

    def chunk(self) -> Chunk:
        if not self.kind:
            return self.first
        said: Any = "".join(self.words)
        delta: dict[str, Json] = {self.kind: said}
        if self.kind not in _TEXTS:
            piece = (self.first.delta or {})["tool_calls"][0]
            delta = {"tool_calls": [{**piece, "function": {"arguments": said}}]}
        return replace(self.first, delta=delta, logprobs=self.logprobs or None)


def _put_together(runs: list[_Run]) -> list[Chunk]:
    """One choice. Streams open with an empty text, where whole answers that only call tools, or decline, have none."""
    chunks = [run.chunk() for run in runs]
    said = [chunk.delta or {} for chunk in chunks]
    if any(delta.get("content") for delta in said) or not any(
        delta.get("tool_calls") or delta.get("function_call") or delta.get("refusal") for delta in said
    ):
        return chunks
    for chunk, delta in zip(chunks, said, strict=True):
        if "content" in delta:
            chunk.delta = {name: value for name, value in delta.items() if name != "content"}
    return chunks


def _text(chunk: Chunk) -> tuple[str, str] | None:
    """The kind of text that ``chunk`` holds a piece of, and the piece; None where it holds anything besides."""
    if len(chunk.delta or ()) != 1 or chunk.finish_reason is not None or chunk.revocation is not None:
        return None
    match chunk.delta:
        case {
            "tool_calls": [{"index": int(index), "function": {"arguments": str(words)} as function} as piece]
        }:
            plain = len(piece) == 2 and len(function) == 1
            return (f"arguments {index}", words) if plain else None
        case {**delta}:
            ((kind, value),) = delta.items()
            return (kind, value) if kind in _TEXTS and isinstance(value, str) else None
    return None
