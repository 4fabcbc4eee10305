"""Which steps are replayed, and on what: with a recorder that runs again instead, for which no GPU is needed.

That a model says the same with recordings and without is shown in test_triton.py, with kernels that bear idle rows.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.attention.metadata import AttentionMetadata
from engine.core.plan import Plan, ScheduledRequest
from engine.kv_cache import KVCache, KVShape
from engine.worker.batch import Batch, BatchBuilder
from engine.worker.cuda_graphs import DecodeGraphs

CPU = torch.device("cpu")


class Given:
    """A model whose hidden states are all that it was given for each row."""

    vocab_size, max_positions, kv_shape = 320, 512, KVShape(1, 1, 16)

    def forward(self, tokens: Tensor, positions: Tensor, batch: AttentionMetadata, cache: KVCache) -> Tensor:
        (group,) = batch.decodes
        given = [tokens, positions, batch.slots, group.seq_lens, group.block_tables[:, 0]]
        return torch.stack(given, 1)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden


class Recorder:
    def __init__(self) -> None:
        self.replays = 0

    def __call__(self, run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        hidden = run()

        def replay() -> None:
            self.replays += 1
            hidden.copy_(run())

        return replay, hidden


def decode(request_id: int, length: int, **more: int) -> ScheduledRequest:
    return ScheduledRequest(request_id, [40 + request_id], length, [request_id], None, True, **more)


OTHERS = [decode(1, 4), decode(2, 9)]
SHORT_PROMPT = ScheduledRequest(0, [5, 6, 7, 8, 9], 0, [0], None, False)
PROMPT = ScheduledRequest(0, list(range(20)), 0, [0, 3], None, False)
CHUNK = ScheduledRequest(0, list(range(20)), 7, [0, 3], None, False)
DRAFTS = ScheduledRequest(0, [5, 6, 7], 8, [0], None, True, num_draft_tokens=2)


def test_decodes_are_replayed_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.attention.select.packs", lambda *shape: False)
    cache = KVCache(Given.kv_shape, 6, 16, CPU, torch.float32)
    recorder = Recorder()
    graphs = DecodeGraphs(Given(), cache, 32, 32, recorder)

    def batch(*scheduled_requests: ScheduledRequest) -> Batch:
        return BatchBuilder(cache, CPU).build(Plan(list(scheduled_requests)))

    for scheduled_requests in (
        [SHORT_PROMPT],
        [PROMPT],
        [CHUNK],
        [*OTHERS, PROMPT],
        [*OTHERS, CHUNK],
        [DRAFTS],
        [decode(i, 3) for i in range(33)],
    ):
        assert graphs.forward(batch(*scheduled_requests)) is None
    assert recorder.replays == 0
    for count, scheduled_requests in enumerate((OTHERS[:1], OTHERS, [decode(0, 5), *OTHERS], OTHERS[1:]), 1):
        made = batch(*scheduled_requests)
        replayed = graphs.forward(made)
        assert recorder.replays == count
        assert replayed is not None
        assert torch.equal(replayed, Given().forward(made.tokens, made.positions, made.attention, cache))
