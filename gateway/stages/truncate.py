"""Leaves out the oldest part of a conversation that is too long for its model, where the caller allows that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace

import orjson

from gateway.errors import ContextTooLong
from gateway.types import Call, Chunks, Handler, Json, Stage

HEADER = "x-tollgate-truncated"
"""How many messages were left out."""
MOST_TRIES = 12
KEPT = 0.75
"""Share of a conversation that is tried next, where nothing is known of the model's context."""

Messages = Sequence[Mapping[str, Json]]


def truncate() -> Stage:
    """Requests whose caller does not allow it (``ChatRequest.truncates``) pass untouched."""

    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            return _shortening(call, following) if call.request.truncates else following(call)

        return handle

    return stage


async def _shortening(call: Call, following: Handler) -> Chunks:
    messages: Messages = call.request.messages or ()
    before = len(messages)
    begun = False

    def forget() -> None:
        nonlocal begun
        begun = False

    call.on_discard(forget)
    for tried in range(MOST_TRIES):
        begun = False
        try:
            async with aclosing(following(call)) as chunks:
                async for chunk in chunks:
                    begun = begun or chunk.comment is None
                    yield chunk
            return
        except ContextTooLong:
            fewer = None if begun or tried == MOST_TRIES - 1 else shortened(messages, _share(call))
            if fewer is None:
                raise
        # The call itself is changed, not a copy: to whoever looks at it later this is what was asked.
        if call.estimate is not None:
            prompt = round(call.estimate.prompt * _size(fewer) / _size(messages))
            call.estimate = replace(call.estimate, prompt=max(prompt, 1))
        messages = fewer
        call.request = replace(call.request, messages=tuple(messages))
        call.reply_headers[HEADER] = str(before - len(messages))
        call.receipt.note("truncate", messages=before, left_out=before - len(messages))


def _share(call: Call) -> float:
    """How much of the conversation to try next."""
    context, estimate = call.policy.models[call.model].context, call.estimated()
    if context is None or estimate is None or estimate.prompt <= context:
        return KEPT
    return min(KEPT, 0.95 * context / estimate.prompt)


def shortened(messages: Messages, share: float) -> list[Mapping[str, Json]] | None:
    """``messages`` without the oldest, so that about ``share`` of their size is left; None where nothing can go.

    What the system says stays, and the question at hand. A tool's result stays with its call.
    """
    spoken = [i for i, message in enumerate(messages) if message.get("role") not in _SYSTEM]
    sizes = [_size([messages[i]]) for i in spoken]
    surplus = sum(sizes) * (1 - share)
    question, gone = None, 0
    start: tuple[int, int | None] | None = None
    for place, (first, size) in enumerate(zip(spoken, sizes, strict=True)):
        role = messages[first].get("role")
        question = first if role == "user" else question
        left_out = place - (question is not None and question < first)
        if role != "tool" and left_out > 0:
            start = first, question
            if gone >= surplus:
                break
        gone += size
    if start is None:
        return None
    first, question = start
    return [m for i, m in enumerate(messages) if i >= first or i == question or m.get("role") in _SYSTEM]


_SYSTEM = ("system", "developer")


def _size(messages: Messages) -> int:
    return len(orjson.dumps(list(messages), default=dict)) or 1
