"""Answers that their callers want whole, asked for as streams: a server that has fallen silent is known by that.

How long a silence may be is for the policy to say. Where it says nothing, a whole answer is asked for as one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import replace

from gateway.backends.answer_limits import MAX_BODY
from gateway.errors import BadRequest, GatewayError, UpstreamFailed
from gateway.joined_chunks import JoinedChunks
from gateway.types import Call, ChatRequest, Chunk, Chunks, Usage

WHOLE_ONLY = frozenset({"audio", "best_of", "prompt_logprobs", "use_beam_search"})
"""Parameters that servers do not take for streams, or answer otherwise there."""

_STREAM = re.compile(r"\bstream(s|ed|ing|_options)?\b", re.IGNORECASE)


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
        """What ``send`` streams, once it is whole. Nothing is passed on of an answer that breaks off."""
        answer = CollectedAnswer(self._backend)
        begun = False
        try:
            async with aclosing(send(replace(request, stream=True))) as chunks:
                async for chunk in chunks:
                    begun = True
                    answer.add((chunk,))
        except GatewayError as error:
            refused = isinstance(error, BadRequest) and _STREAM.search(f"{error.param} {error.message}")
            if begun or not refused:
                error.unread = answer.chunks()
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
    """What has come of a stream that is to be passed on as a whole, or not at all."""

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._joined = JoinedChunks()

    @property
    def usage(self) -> Usage | None:
        return self._joined.usage

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Raises ``UpstreamFailed`` where it grows beyond what any answer takes."""
        for chunk in chunks:
            self._joined.add(chunk)
        if self._joined.memory > MAX_BODY:
            raise UpstreamFailed(
                f"Backend '{self._backend}' sent an answer of over {MAX_BODY} bytes.",
                code="upstream_malformed",
            )

    def chunks(self) -> list[Chunk]:
        """It in few chunks, choice by choice; the usage is on the last."""
        choices: dict[int, list[Chunk]] = {}
        for item in self._joined.items:
            choices.setdefault(item.index, []).append(item.chunk())
        chunks = [chunk for choice in choices.values() for chunk in _without_empty_content(choice)]
        if not chunks and self.usage is not None:
            return [Chunk(usage=self.usage)]
        for last in chunks[-1:]:
            last.more, last.usage = False, self.usage
        return chunks


def _without_empty_content(chunks: list[Chunk]) -> list[Chunk]:
    """Streams open with an empty text, where whole answers that only call tools, or decline, have none."""
    deltas = [chunk.delta or {} for chunk in chunks]
    if any(delta.get("content") for delta in deltas) or not any(
        delta.get("tool_calls") or delta.get("function_call") or delta.get("refusal") for delta in deltas
    ):
        return chunks
    for chunk, delta in zip(chunks, deltas, strict=True):
        if "content" in delta:
            chunk.delta = {name: value for name, value in delta.items() if name != "content"}
    return chunks
