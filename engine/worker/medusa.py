"""Draft tokens from Medusa heads, which read the hidden state that the last token was sampled from. They have no cache:
nothing is computed for requests that get no draft tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.core.plan import Plan
from engine.models.hidden_states import HiddenStates
from engine.models.medusa import MedusaHeads
from engine.models.registry import Model
from engine.worker.batch import Batch
from engine.worker.head_drafts import DraftRow, HeadDrafts, opened


class MedusaProposer(HeadDrafts):
    source = "medusa"
    block_bytes = 0

    def __init__(self, config: EngineConfig, target: Model, device: torch.device, dtype: torch.dtype) -> None:
        """Raises ``StartupError``."""
        super().__init__(target.vocab_size)
        folder, build = opened(config, device, dtype)
        self.heads = MedusaHeads(folder, target, build)

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
                row = end - scheduled.num_draft_tokens + len(sampled) - 2
                self._hidden[scheduled.request_id] = states.last[row]

    def look(
        self, plan: Plan, tokens: Mapping[int, Sequence[int]], limits: Mapping[int, int]
    ) -> dict[int, int]:
        return {
            request_id: min(limit, len(self.heads))
            for request_id, limit in limits.items()
            if request_id in self._rows and limit > 0
        }

    def _logits(self, hidden: Tensor, done: int) -> Tensor:
        return self.heads.logits(done, hidden)
