"""The text of an answer, kept while it comes, where texts are recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from gateway.deltas import join_delta, joined
from gateway.types import Call, ChatRequest, Chunk, Chunks, Handler, Json

MOST = 2**20
"""Characters of an answer; a longer one is not kept."""


class KeptAnswer:
    """``asked`` is what was sent to the model, ``model`` its public name."""

    __slots__ = ("_choices", "_size", "asked", "is_whole", "model")

    def __init__(self, asked: ChatRequest, model: str) -> None:
        self.asked = asked
        self.model = model
        self.clear()

    def clear(self) -> None:
        """Another answer is given in place of this one."""
        self.is_whole = True
        """Nothing of its text is left out."""
        self._choices: dict[int, dict[str, Json]] = {}
        self._size = 0

    def add(self, chunk: Chunk) -> None:
        if chunk.revocation is not None:
            self._leave_out()
        delta = chunk.delta
        if not delta or not self.is_whole:
            return
        if "bytes" in delta or "json" in delta or "embedding" in delta:
            self._leave_out()
            return
        self._size += sum(len(value) for value in delta.values() if isinstance(value, str))
        if self._size > MOST:
            self._leave_out()
        else:
            join_delta(self._choices.setdefault(chunk.index, {}), delta)

    def passed(self, like: Chunk, texts: Sequence[str]) -> None:
        """As ``add``, for those that went to the call's sink."""
        for text in texts:
            self.add(like.with_text(text))

    @property
    def messages(self) -> list[Mapping[str, Any]]:
        """One of each choice; none where it is no text, was taken back, or is too long."""
        return [{"role": "assistant", **joined(whole)} for _, whole in sorted(self._choices.items())]

    @property
    def size(self) -> int:
        """Characters, approximately."""
        return self._size

    def _leave_out(self) -> None:
        self.is_whole = False
        self._choices = {}
        self._size = 0


def keeping(call: Call, answer: KeptAnswer, following: Handler) -> Chunks:
    """What ``following`` answers to ``call``, while ``answer`` keeps it."""
    chunks = _kept(call, answer, following)
    call.relays(chunks)
    return chunks


async def _kept(call: Call, answer: KeptAnswer, following: Handler) -> Chunks:
    call.on_discard(answer.clear)
    async with aclosing(following(call)) as chunks:
        call.looks_on(chunks, answer.passed)
        async for chunk in chunks:
            answer.add(chunk)
            yield chunk
