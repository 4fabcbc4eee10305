"""Which steps are replayed, and on what: with a recorder that runs again instead, for which no GPU is needed.

That a model says the same with recordings and without is shown in test_triton.py, with kernels that bear idle rows.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.attention.metadata import AttentionMetadata
from engine.core.block_pool import GONE
from engine.core.plan import Plan, ScheduledRequest
from engine.kv_cache import KVCache, KVShape
from engine.kv_groups import KVGroup
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


def test_each_group_of_layers_has_slots_and_tables_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.attention.select.packs", lambda *shape: False)
    groups = [KVGroup((0,)), KVGroup((1,), window=20)]
    cache = KVCache(KVShape(2, 1, 16), 9, 16, CPU, torch.float32, groups=groups)

    class Both(Given):
        def forward(
            self, tokens: Tensor, positions: Tensor, batch: AttentionMetadata, cache: KVCache
        ) -> Tensor:
            return torch.cat(
                [Given.forward(self, tokens, positions, own, cache) for _, own in cache.by_layer(batch)], 1
            )

    graphs = DecodeGraphs(Both(), cache, 8, 64, Recorder())
    first = ScheduledRequest(0, [5], 40, [0, 1, 2], None, True, others=[[GONE, 3, 4]])
    second = ScheduledRequest(1, [6], 3, [5], None, True, others=[[6]])
    for scheduled in ([first, second], [second], [first]):
        made = BatchBuilder(cache, CPU).build(Plan(scheduled))
        replayed = graphs.forward(made)
        assert replayed is not None
        assert torch.equal(replayed, Both().forward(made.tokens, made.positions, made.attention, cache))
    # What is behind the window is padding, and both layers are in the same tensors.
    assert made.common[1].block_tables[0, :3].tolist() == [cache.padding_block, 3, 4]
    assert [common.slots.tolist() for common in made.common] == [[2 * 16 + 8], [4 * 16 + 8]]
    assert cache.layers[0] is cache.layers[1]
