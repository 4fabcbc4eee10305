"""Guesses at tokens to come: computed with what nobody else can use in a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.core.block_tables import BlockTables
from engine.core.plan import Plan
from engine.core.request import Request


class Guesses:
    def __init__(self, tables: BlockTables, lookahead: int) -> None:
        """``lookahead``: most guesses a step and request."""
        self._tables = tables
        self._lookahead = lookahead

    def add(self, plan: Plan, requests: Mapping[int, Request], budget: int, spare: int) -> None:
        """Lengthens the works that draw by their requests' guesses, and makes room for the next ones.

        ``budget``: tokens left in the step. ``spare``: blocks that may be taken.
        """
        pool, block_size, lookahead = self._tables.pool, self._tables.block_size, self._lookahead
        for scheduled in plan.requests:
            if scheduled.sampling is None:
                continue
            blocks, guesses = scheduled.blocks, requests[scheduled.request_id].drafts
            # What may be drawn after this step's token. Nothing is computed after the last.
            allowed = scheduled.sampling.max_tokens - 1 - (len(scheduled.history) - scheduled.prompt_length)
            drafts = min(len(guesses), lookahead, budget, allowed) if guesses and budget else 0
            room = lookahead if allowed > drafts + lookahead else max(0, allowed - drafts - 1)
            slots = len(blocks) * block_size - len(scheduled.history)
            if drafts + room > slots:
                wanted = min(self._tables.count(drafts + room - slots), spare)
                if wanted > 0:
                    blocks.extend(pool.allocate(wanted))
                    spare -= wanted
                    slots += wanted * block_size
                drafts = min(drafts, slots)
                room = min(room, slots - drafts)
            if drafts:
                scheduled.tokens += guesses[:drafts]
                scheduled.drafts = drafts
                budget -= drafts
            scheduled.room = room


def agreed(guesses: Sequence[int], tokens: Sequence[int]) -> int:
    """How many guesses came true."""
    count = 0
    for guess, token in zip(guesses, tokens, strict=False):
        if guess != token:
            break
        count += 1
    return count
