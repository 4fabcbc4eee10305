"""The model's hidden states on the texts that a draft head learns from."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from engine.core.plan import Plan, ScheduledRequest
from engine.drafts.texts import Sequenced
from engine.kv_cache import KVCache
from engine.models.hidden_states import HiddenStates
from engine.models.registry import Model
from engine.worker.batch import BatchBuilder

_BLOCK = 16
_TOKENS = 512
"""Of a step, unless a single text is longer."""


class StateReader:
    def __init__(self, model: Model, layers: Sequence[int], dtype: torch.dtype, length: int) -> None:
        """``layers``: those whose input is read, beside what the LM head reads. ``length``: of the longest text."""
        self._model = model
        self._layers = layers
        cpu = torch.device("cpu")
        blocks = max(length, _TOKENS) // _BLOCK + _TOKENS // 2
        self._cache = KVCache(model.kv_shape, blocks, _BLOCK, cpu, dtype)
        self._batches = BatchBuilder(self._cache, cpu)

    @torch.inference_mode()
    def read(self, texts: Sequence[Sequenced]) -> list[Tensor]:
        """bfloat16 [tokens, (layers + 1) * hidden] of each: the layers' input, then what the LM head reads."""
        found: list[Tensor] = []
        start = 0
        while start < len(texts):
            end, tokens = start, 0
            while end < len(texts) and (end == start or tokens + len(texts[end].tokens) <= _TOKENS):
                tokens += len(texts[end].tokens)
                end += 1
            found += self._step(texts[start:end])
            start = end
        return found

    def _step(self, texts: Sequence[Sequenced]) -> list[Tensor]:
        requests, block = [], 0
        for number, text in enumerate(texts):
            count = -(-len(text.tokens) // _BLOCK)
            blocks = list(range(block, block + count))
            requests.append(ScheduledRequest(number, text.tokens, 0, blocks, None, False))
            block += count
        batch, states = self._batches.build(Plan(requests)), HiddenStates(self._layers)
        last = self._model.forward(batch.tokens, batch.positions, batch.attention, self._cache, states)
        rows: dict[int, Tensor] = {}
        first = 0
        for scheduled in batch.order:
            index = torch.arange(first, first + len(scheduled.tokens))
            kept = [states.rows(index)] if self._layers else []
            rows[scheduled.request_id] = torch.cat([*kept, last[index]], -1).to(torch.bfloat16)
            first += len(scheduled.tokens)
        return [rows[number] for number in range(len(texts))]
