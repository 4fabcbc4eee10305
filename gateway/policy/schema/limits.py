"""``limits``: how much structure a request's body and an upstream's answer may have.

A body's bytes are bounded by ``TOLLGATE_MAX_BODY_BYTES``.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

from pydantic import Field

from gateway.policy.schema.values import Count, Frozen


class RequestLimits(Frozen):
    """A long text costs next to nothing to read, a million short ones cost seconds."""

    messages: Count = 10_000
    parts: Count = 10_000
    """Of all messages together."""
    tools: Count = 1024
    stop: Count = 64
    prompts: Count = 2048
    """Texts, or lists of token ids, in one ``prompt`` or ``input``."""
    answers: Count = 2048
    """Asked for at once: ``n`` or ``best_of``, for each prompt."""
    values: Count = 250_000
    """Texts, names, lists and objects in the whole body."""
    entries: Count = 1_000_000
    """Of all lists and objects together: token ids above all."""
    depth: Annotated[int, Field(strict=True, ge=8, le=250)] = 250
    """Lists and objects within each other."""
    answer_values: Count = 250_000
    """Texts, names, lists and objects in a whole answer, or in one event of a stream; four numbers count as one."""
    answer_parts: Count = 1024
    """Tool calls, or parts (blocks) of content, in one answer, all its choices together."""
    empty_events: Count = 100_000
    """Of one stream, that bring nothing of the answer: comments, pings, empty deltas."""

    @cached_property
    def shortest(self) -> int:
        """The least that any list of a body may hold."""
        return min(self.messages, self.parts, self.tools, self.stop, self.prompts)


USUAL = RequestLimits()
