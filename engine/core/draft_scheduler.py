"""Draft tokens in a step: verified with budget and blocks that no other request can use."""

from __future__ import annotations

from collections.abc import Mapping

from engine.core.block_tables import BlockTables
from engine.core.plan import PENDING, Plan
from engine.core.request import Request


class DraftScheduler:
    def __init__(
        self, tables: BlockTables, max_drafts: int, *, reserving: bool = True, feeding: bool = False
    ) -> None:
        """``max_drafts``: most draft tokens a step and request. ``reserving``: whether proposing the next ones needs
        their blocks, as a draft model does. ``feeding``: whether they stay where they are proposed, so that a step can
        be planned before anybody has seen them."""
        self.feeding = feeding
        self._reserving = reserving
        self._tables = tables
        self._max_drafts = max_drafts

    def add(self, plan: Plan, requests: Mapping[int, Request], budget: int, spare: int) -> None:
        """Appends draft tokens to scheduled requests that sample, and allocates blocks for the next ones.

        ``budget``: tokens left in the step. ``spare``: blocks that may be allocated for them.
        """
        pool, block_size, max_drafts = self._tables.pool, self._tables.block_size, self._max_drafts
        groups = self._tables.groups
        for scheduled in plan.requests:
            request = requests[scheduled.request_id]
            if scheduled.sampling is None or (request.pending and not self.feeding):
                continue
            length = len(scheduled.history) + request.pending
            blocks, draft_tokens = scheduled.blocks, request.draft_tokens
            # Tokens that may be sampled after this step's. Nothing is computed after the last.
            allowed = scheduled.sampling.max_tokens - 1 - (length - scheduled.prompt_length)
            drafts = min(len(draft_tokens), max_drafts, budget, allowed) if draft_tokens and budget else 0
            lookahead = max_drafts if allowed > drafts + max_drafts else max(0, allowed - drafts - 1)
            if not (drafts or self._reserving):
                scheduled.lookahead = lookahead
                continue
            slots = len(blocks) * block_size - length
            reserved = lookahead if self._reserving else 0
            if drafts + reserved > slots:
                wanted = min(self._tables.count(drafts + reserved - slots), spare // groups)
                if wanted > 0:
                    for table in (blocks, *scheduled.others):
                        table.extend(pool.allocate(wanted))
                    spare -= wanted * groups
                    slots += wanted * block_size
                drafts = min(drafts, slots)
                if self._reserving:
                    lookahead = min(lookahead, slots - drafts)
            if drafts:
                scheduled.tokens += draft_tokens[:drafts]
                scheduled.num_draft_tokens = drafts
                scheduled.draft_parents = request.draft_parents[:drafts]
                budget -= drafts
            scheduled.lookahead = lookahead

    def expect(self, plan: Plan, requests: Mapping[int, Request], counts: Mapping[int, int]) -> None:
        """``plan``, which is in flight, proposes so many by request."""
        for scheduled in plan.requests:
            request = requests.get(scheduled.request_id)
            if request is not None and request.pending:
                request.draft_tokens = [PENDING] * counts.get(request.id, 0)

    def binds(self, plan: Plan) -> bool:
        """Whether draft tokens may follow what ``plan`` samples: they belong into the very next step, which cannot be
        planned without knowing them."""
        return not self.feeding and any(
            scheduled.sampling is not None and (self._reserving or scheduled.sampling.grammar is not None)
            for scheduled in plan.requests
        )
