"""Draft tokens from an EAGLE-3 head, which reads the target's hidden states.

What the head caches at a position belongs to the target's hidden state there and the token after it. Hidden states are
there only while the target's step is, so each step's are run through the head at once, prompts too: a layer's worth of
work. Its KV cache has the target's block numbers, so shared, cached and copied blocks are so for both. Where a block
was computed for a request that went on otherwise after it, the last position has that request's token: the next drafts
are a little worse for it, and no answer is another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.core.draft_tree import DraftTree
from engine.core.plan import PENDING, Plan, ScheduledRequest
from engine.kv_cache import KVCache
from engine.models.eagle import EagleHead
from engine.models.hidden_states import HiddenStates
from engine.models.registry import Model
from engine.worker.batch import Batch, BatchBuilder
from engine.worker.feed import Feed
from engine.worker.growing_tree import GrowingTree, TreeShape
from engine.worker.head_drafts import DraftRow, HeadDrafts, opened
from engine.worker.upload import upload
from engine.worker.verified import Verified, VerifiedRequest


class EagleProposer(HeadDrafts):
    source = "eagle"

    def __init__(self, config: EngineConfig, target: Model, device: torch.device, dtype: torch.dtype) -> None:
        """Raises ``StartupError``."""
        folder, build = opened(config, device, dtype)
        self.head = EagleHead(folder, target, build)
        super().__init__(target.vocab_size, self.head.vocabulary)
        self.shape = TreeShape.of(config)
        self._rooms: dict[int, int] = {}
        """By request, slots for draft tokens."""
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
        rows: dict[int, list[int]] = {}
        entries, row = [], 0
        for scheduled in batch.order:
            sampled = tokens.get(scheduled.request_id, ())
            if entry := self._entry(scheduled, sampled):
                entries.append(entry)
                rows[scheduled.request_id] = _rows_of(scheduled, sampled, row, len(entry.tokens))
            row += len(scheduled.tokens)
        if not entries:
            return
        own = self._batches.build(Plan(entries))
        index = [one for entry in own.order for one in rows[entry.request_id]]
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
        self._rooms = dict(able)
        return able

    def propose_trees(self, sizes: Mapping[int, int]) -> dict[int, DraftTree]:
        growing = [
            GrowingTree(self._rows[request_id], min(size, self._rooms[request_id]), self._rooms[request_id])
            for request_id, size in sizes.items()
        ]
        hidden = torch.stack([self._hidden[request_id] for request_id in sizes])
        level = growing
        while level:
            rows = [row for tree in level for row in tree.rows()]
            found = self._candidates(self.head.logits(hidden), rows, self.shape.children)
            first = 0
            for tree in level:
                count = len(tree.leaves)
                tree.add(found[first : first + count], self.shape, first)
                first += count
            if level := [tree for tree in level if tree.leaves]:
                hidden = self._run_level(level, hidden)
        trees = {tree.row.scheduled.request_id: tree.best(self.shape) for tree in growing}
        return {request_id: tree for request_id, tree in trees.items() if tree.tokens}

    def _run_level(self, level: Sequence[GrowingTree], hidden: Tensor) -> Tensor:
        """Runs the leaves, with the head's own hidden states of their parents in the target's place; returns theirs."""
        entries, given = [], {}
        for tree in level:
            scheduled = tree.row.scheduled
            entry = ScheduledRequest(
                scheduled.request_id,
                [tree.tokens[leaf] for leaf in tree.leaves],
                tree.row.length - 1 + len(tree.run) - len(tree.leaves),
                scheduled.blocks,
                None,
                True,
                draft_parents=tree.run_parents(),
            )
            entries.append(entry)
            given[scheduled.request_id] = tree.sources
        own = self._batches.build(Plan(entries))
        index = [one for entry in own.order for one in given[entry.request_id]]
        made = self.head.forward(
            self.head.embed(own.tokens), hidden[index], own.positions, own.attention, self._cache
        )
        places, row = {}, 0
        for entry in own.order:
            places[entry.request_id] = range(row, row + len(entry.tokens))
            row += len(entry.tokens)
        return made[[one for entry in entries for one in places[entry.request_id]]]

    def able(self, verified: Verified, limits: Mapping[int, int]) -> dict[int, int]:
        able = {}
        for number, limit in limits.items():
            # If all that are verified are accepted; the last draft token is not run.
            scheduled = verified.requests[number].scheduled
            limit = min(limit, self.head.max_positions - scheduled.end + 1)
            if limit > 0 and scheduled.end <= self.head.max_positions:
                able[number] = limit
        return able

    def _after(self, verified: Verified, states: HiddenStates) -> Tensor:
        first_rows, entries, row = {}, [], 0
        for scheduled in verified.batch.order:
            number, count = scheduled.request_id, len(scheduled.tokens)
            first_rows[number] = row
            row += count
            if scheduled.end > self.head.max_positions:
                continue
            if number in verified.requests:
                # After a draft token that is not accepted: the next step writes there again.
                after = scheduled.history[scheduled.start + 1 :]
                after = after + [PENDING] * (count - len(after))
            elif scheduled.sampling is None:
                after = scheduled.history[scheduled.start + 1 : scheduled.end + 1]
            else:
                continue
            entries.append(ScheduledRequest(number, after, scheduled.start, scheduled.blocks, None, True))
        found = verified.sampled.new_zeros(len(verified.requests), dtype=self._dtype)
        if not entries:
            return found[:, None]
        samples = {number: one.sample for number, one in verified.requests.items()}
        own = self._batches.build(Plan(entries), Feed(samples, len(verified.sampled), verified.sampled))
        index = [first_rows[entry.request_id] + i for entry in own.order for i in range(len(entry.tokens))]
        (targets,) = upload([np.array(index, dtype=np.int64)], self._device)
        embeddings = self.head.embed(own.tokens)
        fused = self.head.fuse(states.rows(targets))
        made = self.head.forward(embeddings, fused, own.positions, own.attention, self._cache)
        # From the target's rows to the head's.
        rows = torch.zeros(row, dtype=torch.int64, device=self._device)
        rows[targets] = torch.arange(len(index), device=self._device)
        return made[rows[verified.rows]]

    def _onwards(
        self, rows: Sequence[VerifiedRequest], hidden: Tensor, rejected: Tensor, drafts: Tensor, done: int
    ) -> Tensor:
        entries, places = [], {}
        for place, row in enumerate(rows):
            scheduled = row.scheduled
            entry = ScheduledRequest(
                scheduled.request_id, [PENDING], scheduled.end - 1 + done, scheduled.blocks, None, True
            )
            entry.slack = scheduled.num_draft_tokens
            entries.append(entry)
            places[scheduled.request_id] = place
        own = self._batches.build(
            Plan(entries), Feed(places, len(places), torch.stack([rejected, drafts], 1), 2)
        )
        (order,) = upload(
            [np.array([places[entry.request_id] for entry in own.order], dtype=np.int64)], self._device
        )
        embeddings = self.head.embed(own.tokens)
        made = self.head.forward(embeddings, hidden[order], own.positions, own.attention, self._cache)
        return torch.empty_like(made).index_copy_(0, order, made)

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


def _rows_of(scheduled: ScheduledRequest, sampled: Sequence[int], first: int, count: int) -> list[int]:
    """The rows of the target's hidden states that belong to its first ``count`` tokens, of a tree to its accepted
    branch. ``first``: the request's first row."""
    tree = scheduled.tree
    if tree is None:
        return list(range(first, first + count))
    before = len(scheduled.tokens) - len(tree.tokens)
    branch = [first + before + place for place in tree.path(sampled)]
    return [*range(first, first + before), *branch][:count]
