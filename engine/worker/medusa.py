"""Draft tokens from Medusa heads, which read the hidden state that the last token was sampled from. They have no cache:
nothing is computed for requests that get no draft tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.core.draft_tree import DraftTree
from engine.core.plan import Plan
from engine.models.hidden_states import HiddenStates
from engine.models.medusa import MedusaHeads
from engine.models.registry import Model
from engine.worker.batch import Batch
from engine.worker.head_drafts import DraftRow, HeadDrafts, opened
from engine.worker.sparse_tree import sparse_tree, tokens_of
from engine.worker.verified import Verified


class MedusaProposer(HeadDrafts):
    source = "medusa"
    block_bytes = 0

    def __init__(self, config: EngineConfig, target: Model, device: torch.device, dtype: torch.dtype) -> None:
        """Raises ``StartupError``."""
        super().__init__(target.vocab_size)
        folder, build = opened(config, device, dtype)
        self.heads = MedusaHeads(folder, target, build)
        self._trees = config.draft_tree > 0
        self._depth = config.max_drafts

    def allocate(self, blocks: int) -> None:
        pass

    def states(self) -> HiddenStates:
        return HiddenStates(())

    def begin(self, plan: Plan) -> None:
        pass

    def observe(self, batch: Batch, states: HiddenStates, tokens: Mapping[int, Sequence[int]]) -> None:
        self._begin()
        if states.last is None:
            return
        end = 0
        for scheduled in batch.order:
            end += len(scheduled.tokens)
            if sampled := tokens.get(scheduled.request_id):
                self._rows[scheduled.request_id] = DraftRow(scheduled, sampled)
                tree, row = scheduled.tree, end - scheduled.num_draft_tokens + len(sampled) - 2
                if tree is not None:
                    branch = tree.path(sampled)
                    row = end - scheduled.num_draft_tokens + (branch[-1] if branch else -1)
                self._hidden[scheduled.request_id] = states.last[row]

    def look(
        self, plan: Plan, tokens: Mapping[int, Sequence[int]], limits: Mapping[int, int]
    ) -> dict[int, int]:
        return {
            request_id: limit if self._trees else min(limit, len(self.heads))
            for request_id, limit in limits.items()
            if request_id in self._rows and limit > 0
        }

    def propose_trees(self, sizes: Mapping[int, int]) -> dict[int, DraftTree]:
        rows = [self._rows[request_id] for request_id in sizes]
        hidden = torch.stack([self._hidden[request_id] for request_id in sizes])
        found: list[list[list[int]]] = [[] for _ in rows]
        for head in range(min(self._depth, len(self.heads))):
            candidates = self._candidates(
                self.heads.logits(head, hidden),
                [row.sampling_row for row in rows],
                len(self.heads.right[head]),
            )
            for row, of_head, ranked in zip(rows, found, candidates, strict=True):
                of_head.append([token for token, _ in ranked])
                # What the next head's token is taken to follow.
                row.add(ranked[0][0])
        right = self.heads.right[: self._depth]
        return {
            request_id: tokens_of(sparse_tree(right, size), ranked)
            for (request_id, size), ranked in zip(sizes.items(), found, strict=True)
        }

    def able(self, verified: Verified, limits: Mapping[int, int]) -> dict[int, int]:
        return {number: min(limit, len(self.heads)) for number, limit in limits.items()}

    def _after(self, verified: Verified, states: HiddenStates) -> Tensor:
        if states.last is None:
            raise ValueError("heads read hidden states")
        return states.last[verified.rows]

    def _logits(self, hidden: Tensor, done: int) -> Tensor:
        return self.heads.logits(done, hidden)
