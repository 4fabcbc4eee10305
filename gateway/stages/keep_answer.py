"""Keeps the text of an answer that is recorded or judged. Past the guards of input: what they mask is masked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gateway.recording.kept_answer import KeptAnswer, keeping
from gateway.types import Call, Chunk, Chunks, Handler, Stage, WholeHandler


class KeepsAnswers(Protocol):
    def begin(self, call: Call) -> KeptAnswer | None:
        """None where its text is not wanted."""
        ...


def keep_answer(records: KeepsAnswers) -> Stage:
    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            answer = records.begin(call)
            return following(call) if answer is None else keeping(call, answer, following)

        return handle

    return stage


def keep_whole(records: KeepsAnswers, following: WholeHandler) -> WholeHandler:
    """``keep_answer`` of calls whose answers come whole."""

    async def handle(call: Call) -> Sequence[Chunk]:
        answer = records.begin(call)
        chunks = await following(call)
        if answer is not None:
            for chunk in chunks:
                answer.add(chunk)
        return chunks

    return handle
