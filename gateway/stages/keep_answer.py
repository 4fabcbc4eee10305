"""Keeps what recordings have of an answer, where the policy records. Past the guards of input, so that it is masked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Protocol

from gateway.recording.kept_answer import KeptAnswer
from gateway.types import Call, Chunk, Chunks, Handler, Stage, WholeHandler


class KeepsAnswers(Protocol):
    def begin(self, call: Call) -> KeptAnswer | None:
        """None where the request is not recorded."""
        ...


def keep_answer(records: KeepsAnswers) -> Stage:
    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            answer = records.begin(call)
            if answer is None:
                return following(call)
            chunks = kept(call, answer, following)
            call.relays(chunks)
            return chunks

        async def kept(call: Call, answer: KeptAnswer, following: Handler) -> Chunks:
            call.on_discard(answer.clear)
            async with aclosing(following(call)) as chunks:
                call.looks_on(chunks, answer.passed)
                async for chunk in chunks:
                    answer.add(chunk)
                    yield chunk

        return handle

    return stage


def keep_whole_answer(records: KeepsAnswers, following: WholeHandler) -> WholeHandler:
    """``keep_answer`` of calls whose answers come whole."""

    async def kept(call: Call) -> Sequence[Chunk]:
        answer = records.begin(call)
        chunks = await following(call)
        if answer is not None:
            for chunk in chunks:
                answer.add(chunk)
        return chunks

    return kept
