"""Which steps are replayed, and on what: with a recorder that runs again instead, for which no GPU is needed.

That a model says the same with recordings and without is shown in test_triton.py, with kernels that bear idle rows.
"""

from __future__ import annotations

from dataclasses import replace

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
from tests.engine.worker.recordings import (
    CHUNK,
    CPU,
    DRAFTS,
    OTHERS,
    PROMPT,
    SHORT_PROMPT,
    SLOTS,
    AdapterOfRow,
    Given,
    Recorder,
    adapter_bank,
    by_layer,
    decode,
)


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


def test_steps_with_draft_tokens_are_replayed_by_recordings_for_the_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.attention.select.packs", lambda *shape: False)
    cache = KVCache(Given.kv_shape, 6, 16, CPU, torch.float32)
    recorder = Recorder()

    class Several(Given):
        """Sees of each row its place in its sequence, too."""

        def forward(
            self, tokens: Tensor, positions: Tensor, batch: AttentionMetadata, cache: KVCache
        ) -> Tensor:
            rows = []
            for group in batch.decodes:
                lens, first = group.seq_lens, group.block_tables[:, 0]
                seen = lens[:, None] - group.new + torch.arange(group.new)
                each = [seen.flatten(), lens.repeat_interleave(group.new), first.repeat_interleave(group.new)]
                rows.append(torch.stack(each, 1))
            given = torch.stack([tokens, positions, batch.slots], 1)
            # Where nothing is real, any position may stand.
            idle = (batch.slots < 0) | (torch.cat(rows)[:, 0] == positions)
            assert idle.all()
            assert batch.decodes[0].new == 1 or (torch.cat(rows)[:, 0][batch.slots >= 0] >= 0).all()
            return torch.cat([given, torch.cat(rows)], 1)

    graphs = DecodeGraphs(Several(), cache, 32, 64, recorder, most_new=4)

    def batch(*scheduled_requests: ScheduledRequest) -> Batch:
        return BatchBuilder(cache, CPU).build(Plan(list(scheduled_requests)))

    two = ScheduledRequest(4, [8, 9], 17, [4, 5], None, True, num_draft_tokens=1)
    four = ScheduledRequest(5, [8, 9, 10, 11], 12, [5], None, True, num_draft_tokens=3)
    five = ScheduledRequest(5, [8, 9, 10, 11, 12], 10, [5], None, True, num_draft_tokens=4)
    early = ScheduledRequest(3, [5, 6], 1, [3], None, True, num_draft_tokens=1)
    cases = ([DRAFTS], [DRAFTS, *OTHERS], [two], [four, *OTHERS, two, DRAFTS], OTHERS, [two, DRAFTS])
    for count, scheduled_requests in enumerate(cases, 1):
        made = batch(*scheduled_requests)
        replayed = graphs.forward(made)
        assert recorder.replays == count
        assert replayed is not None
        assert torch.equal(replayed, Several().forward(made.tokens, made.positions, made.attention, cache))
    # More than was recorded, a sequence with too little behind it, and a prompt beside draft tokens.
    for scheduled_requests in ([five], [early, DRAFTS], [DRAFTS, PROMPT]):
        assert graphs.forward(batch(*scheduled_requests)) is None


def test_each_group_of_layers_has_slots_and_tables_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.attention.select.packs", lambda *shape: False)
    groups = [KVGroup((0,)), KVGroup((1,), window=20)]
    cache = KVCache(KVShape(2, 1, 16), 9, 16, CPU, torch.float32, groups=groups)

    both = by_layer(Given)()
    graphs = DecodeGraphs(both, cache, 8, 64, Recorder())
    first = ScheduledRequest(0, [5], 40, [0, 1, 2], None, True, others=[[GONE, 3, 4]])
    second = ScheduledRequest(1, [6], 3, [5], None, True, others=[[6]])
    for scheduled in ([first, second], [second], [first]):
        made = BatchBuilder(cache, CPU).build(Plan(scheduled))
        replayed = graphs.forward(made)
        assert replayed is not None
        assert torch.equal(replayed, both.forward(made.tokens, made.positions, made.attention, cache))
    # What is behind the window is padding, and both layers are in the same tensors.
    assert made.common[1].block_tables[0, :3].tolist() == [cache.padding_block, 3, 4]
    assert [common.slots.tolist() for common in made.common] == [[2 * 16 + 8], [4 * 16 + 8]]
    assert cache.layers[0] is cache.layers[1]


def test_adapters_are_where_the_recordings_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a recording for draft tokens are elsewhere than the batch's; those without an adapter, and idle ones,
    have none."""
    monkeypatch.setattr("engine.attention.select.packs", lambda *shape: False)
    cache = KVCache(Given.kv_shape, 6, 16, CPU, torch.float32)
    bank = adapter_bank()
    recorder = Recorder()
    graphs = DecodeGraphs(AdapterOfRow(bank), cache, 8, 64, recorder, most_new=3, adapters=bank)
    place = bank.index.data_ptr()

    def asked(scheduled: ScheduledRequest, adapter: str | None) -> ScheduledRequest:
        return replace(scheduled, adapter=adapter)

    cases = [
        [asked(DRAFTS, "two"), asked(OTHERS[0], "one"), OTHERS[1]],
        [asked(OTHERS[0], "one")],
        [OTHERS[0], DRAFTS],
        [OTHERS[1], asked(OTHERS[0], "two")],
        [asked(DRAFTS, "one"), DRAFTS],
    ]
    for count, scheduled_requests in enumerate(cases, 1):
        batch = BatchBuilder(cache, CPU).build(Plan(list(scheduled_requests)))
        bank.select(batch.adapters, CPU)
        replayed = graphs.forward(batch)
        assert recorder.replays == count
        assert replayed is not None
        own = [SLOTS[one.adapter] for one in batch.order for _ in one.tokens]
        assert replayed[:, 0].tolist() == batch.tokens.tolist()
        assert replayed[:, 1].tolist() == (own if batch.adapters else [-2] * len(own))
    assert bank.index.data_ptr() == place
    # Where layers know the rows themselves there is nothing to read on the device.
    bank.select([], CPU)
    bank._stacked = False
    graphs = DecodeGraphs(AdapterOfRow(bank), cache, 8, 64, recorder, adapters=bank)
    assert graphs.forward(BatchBuilder(cache, CPU).build(Plan([asked(OTHERS[0], "one")]))) is None
