"""Keeps the text of an answer where texts are recorded. Past the guards of input, so that what they mask is masked."""

from __future__ import annotations

from contextlib import aclosing
from typing import Protocol

from gateway.recording.kept_answer import KeptAnswer
from gateway.types import Call, Chunks, Handler, Stage


class KeepsAnswers(Protocol):
    def begin(self, call: Call) -> KeptAnswer | None:
        """None where its text is not recorded."""
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
