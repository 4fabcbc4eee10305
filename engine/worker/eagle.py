"""Draft tokens from an EAGLE-3 head, which reads the target's hidden states.

What the head caches at a position belongs to the target's hidden state there and the token after it. Hidden states are
there only while the target's step is, so each step's are run through the head at once, prompts too: a layer's worth of
work. Its KV cache has the target's block numbers, so shared, cached and copied blocks are so for both. Where a block
was computed for a request that went on otherwise after it, the last position has that request's token: the next drafts
are a little worse for it, and no answer is another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.core.plan import Plan, ScheduledRequest
from engine.kv_cache import KVCache
from engine.models.eagle import EagleHead
from engine.models.hidden_states import HiddenStates
from engine.models.registry import Model
from engine.worker.batch import Batch, BatchBuilder
from engine.worker.head_drafts import DraftRow, HeadDrafts, opened


class EagleProposer(HeadDrafts):
    source = "eagle"

    def __init__(self, config: EngineConfig, target: Model, device: torch.device, dtype: torch.dtype) -> None:
        """Raises ``StartupError``."""
        folder, build = opened(config, device, dtype)
        self.head = EagleHead(folder, target, build)
        super().__init__(target.vocab_size, self.head.vocabulary)
        self.block_bytes = self.head.kv_shape.block_bytes(config.block_size, dtype)
        self._block_size = config.block_size
        self._device = device
        self._dtype = dtype

    def allocate(self, blocks: int) -> None:
        self._cache = KVCache(self.head.kv_shape, blocks, self._block_size, self._device, self._dtype)
        self._batches = BatchBuilder(self._cache, self._device)

    def states(self) -> HiddenStates:
        return HiddenStates(self.head.layers)

    def begin(self, plan: Plan) -> None:
        self._cache.copy(plan.copies)

    def observe(self, batch: Batch, states: HiddenStates, tokens: Mapping[int, Sequence[int]]) -> None:
        self._begin()
        first_rows, entries, row = {}, [], 0
        for scheduled in batch.order:
            first_rows[scheduled.request_id] = row
            row += len(scheduled.tokens)
            if entry := self._entry(scheduled, tokens.get(scheduled.request_id, ())):
                entries.append(entry)
        if not entries:
            return
        own = self._batches.build(Plan(entries))
        index = [first_rows[entry.request_id] + i for entry in own.order for i in range(len(entry.tokens))]
        fused = self.head.fuse(states.rows(torch.tensor(index, device=self._device)))
        self._run(own, fused)

    def look(
        self, plan: Plan, tokens: Mapping[int, Sequence[int]], limits: Mapping[int, int]
    ) -> dict[int, int]:
        able = {}
        for request_id, limit in limits.items():
            if request_id in self._hidden:
                # The last draft token is not run.
                limit = min(limit, self.head.max_positions - self._rows[request_id].length + 2)
                if limit > 0:
                    able[request_id] = limit
        return able

    def _logits(self, hidden: Tensor, done: int) -> Tensor:
        return self.head.logits(hidden)

    def _entry(self, scheduled: ScheduledRequest, sampled: Sequence[int]) -> ScheduledRequest | None:
        """What the head computes beside the target: the token after each that is certain by now."""
        start, history = scheduled.start, scheduled.history
        # Of the last token the next one is not known; rejected draft tokens were none of the request's.
        end = min(len(history) + len(sampled) - 1, scheduled.end)
        if end <= start or end > self.head.max_positions:
            return None
        if sampled:
            self._rows[scheduled.request_id] = DraftRow(scheduled, sampled)
        after = history[start + 1 : end + 1]
        after += list(sampled[max(0, start + 1 - len(history)) : end + 1 - len(history)])
        sampling = scheduled.sampling if sampled else None
        return ScheduledRequest(scheduled.request_id, after, start, scheduled.blocks, sampling, True)

    def _advance(self, rows: Sequence[DraftRow]) -> None:
        """Runs the last draft token of each, with the head's own hidden state in the target's place."""
        entries = []
        for row in rows:
            scheduled, drafts = row.scheduled, row.draft_tokens
            start = row.length - 2 + len(drafts)
            entries.append(
                ScheduledRequest(
                    scheduled.request_id, drafts[-1:], start, scheduled.blocks, scheduled.sampling, True
                )
            )
        own = self._batches.build(Plan(entries))
        self._run(own, torch.stack([self._hidden[entry.request_id] for entry in own.order]))

    def _run(self, batch: Batch, hidden: Tensor) -> None:
        """Leaves the hidden state of the last token of each request that samples."""
        embeddings = self.head.embed(batch.tokens)
        made = self.head.forward(embeddings, hidden, batch.positions, batch.attention, self._cache)
        last = made[batch.logits_indices]
        for row, sampling_row in enumerate(batch.sampling_rows):
            self._hidden[sampling_row.request_id] = last[row]
