"""Which mixed steps are replayed, and on what: with a recorder that runs again instead, for which no GPU is needed.

That a model says the same with recordings and without is shown in test_triton.py, with kernels that bear idle rows.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from engine.attention.metadata import AttentionMetadata
from engine.core.block_pool import GONE
from engine.core.plan import Plan, ScheduledRequest
from engine.kv_cache import KVCache, KVShape
from engine.kv_groups import KVGroup
from engine.worker.batch import BatchBuilder
from engine.worker.mixed_graphs import SEQUENCES, MixedGraphs
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
)
from tests.engine.worker.recordings import decode as single


class Described(Given):
    """A model whose hidden states are what attention is told of each row."""

    def forward(self, tokens: Tensor, positions: Tensor, batch: AttentionMetadata, cache: KVCache) -> Tensor:
        rows = torch.full((len(tokens), 6), -7)
        rows[:, 0], rows[:, 1], rows[:, 2] = tokens, positions, batch.slots
        for group in batch.decodes:
            lens = group.seq_lens.repeat_interleave(group.new)
            # Of a recording's idle rows the table is of no interest.
            for row in range(group.start, group.stop):
                number = (row - group.start) // group.new
                before = int(lens[row - group.start]) - group.new
                rows[row, 3] = before + (row - group.start) % group.new
                rows[row, 4] = group.block_tables[number, 0]
        for prefill in batch.prefills:
            starts = prefill.query_starts.tolist()
            for number, (first, end) in enumerate(itertools.pairwise(starts)):
                length = int(prefill.seq_lens[number])
                for row in range(first, end):
                    rows[prefill.start + row, 3] = length - end + row
                    rows[prefill.start + row, 4] = prefill.block_tables[number, 0]
        return rows


def built(cache: KVCache, *scheduled: ScheduledRequest):
    return BatchBuilder(cache, CPU).build(Plan(list(scheduled)))


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.attention.select.packs", lambda *shape: False)


def test_decodes_beside_chunks_are_replayed(unpacked: None) -> None:
    cache = KVCache(Given.kv_shape, 40, 16, CPU, torch.float32)
    recorder = Recorder()
    graphs = MixedGraphs(Described(), cache, 20, 100, 128, recorder)
    assert sorted(graphs._recorded) == [(8, 64, False), (8, 100, False), (20, 64, False), (20, 100, False)]
    many = [single(i, 3) for i in range(10, 19)]
    long = ScheduledRequest(0, list(range(90)), 0, list(range(6)), None, False)
    second = ScheduledRequest(7, list(range(30, 50)), 4, [9, 8], None, False)
    cases = (
        [*OTHERS, PROMPT],
        [*OTHERS, CHUNK],
        [SHORT_PROMPT],
        [PROMPT, second],
        [*OTHERS, second, PROMPT],
        [*OTHERS, DRAFTS, second],
        [*many, long],
        [*OTHERS, SHORT_PROMPT],
    )
    for count, scheduled in enumerate(cases, 1):
        made = built(cache, *scheduled)
        replayed = graphs.forward(made)
        assert recorder.replays == count
        assert replayed is not None
        expected = Described().forward(made.tokens, made.positions, made.attention, cache)
        assert torch.equal(replayed, expected)
        # What attention works out of starts and lengths is what the rows are.
        assert torch.equal(replayed[:, 1], replayed[:, 3])
    too_long = ScheduledRequest(0, list(range(101)), 0, list(range(7)), None, False)
    crowd = [replace(SHORT_PROMPT, request_id=i) for i in range(SEQUENCES + 1)]
    for scheduled in (OTHERS, [*OTHERS, too_long], crowd, [*(single(i, 3) for i in range(21)), PROMPT]):
        assert graphs.forward(built(cache, *scheduled)) is None


def test_nothing_is_stored_for_idle_rows(unpacked: None) -> None:
    cache = KVCache(Given.kv_shape, 40, 16, CPU, torch.float32)
    stored: list[Tensor] = []

    class Storing(Described):
        def forward(
            self, tokens: Tensor, positions: Tensor, batch: AttentionMetadata, cache: KVCache
        ) -> Tensor:
            stored.append(batch.slots.clone())
            return super().forward(tokens, positions, batch, cache)

    graphs = MixedGraphs(Storing(), cache, 8, 64, 128, Recorder())
    for scheduled in ([single(i, 9) for i in range(8)] + [PROMPT], [*OTHERS, CHUNK], [SHORT_PROMPT]):
        made = built(cache, *scheduled)
        graphs.forward(made)
        assert sorted(stored[-1][stored[-1] >= 0].tolist()) == sorted(made.common[0].slots.tolist())


def test_each_group_of_layers_has_slots_and_tables_of_its_own(unpacked: None) -> None:
    groups = [KVGroup((0,)), KVGroup((1,), window=20)]
    cache = KVCache(KVShape(2, 1, 16), 12, 16, CPU, torch.float32, groups=groups)

    both = by_layer(Described)()
    graphs = MixedGraphs(both, cache, 8, 64, 64, Recorder())
    first = ScheduledRequest(0, [5], 40, [0, 1, 2], None, True, others=[[GONE, 3, 4]])
    second = ScheduledRequest(1, list(range(20)), 3, [5, 7], None, True, others=[[6, 8]])
    made = built(cache, first, second)
    replayed = graphs.forward(made)
    assert replayed is not None
    assert torch.equal(replayed, both.forward(made.tokens, made.positions, made.attention, cache))


def test_adapters_are_where_the_recordings_rows_are(unpacked: None) -> None:
    cache = KVCache(Given.kv_shape, 40, 16, CPU, torch.float32)
    bank = adapter_bank()
    graphs = MixedGraphs(AdapterOfRow(bank), cache, 8, 64, 64, Recorder(), adapters=bank)
    for asked in (["one", None, "two"], [None, None, None], ["two", "one", None]):
        each = [replace(one, adapter=own) for one, own in zip([*OTHERS, PROMPT], asked, strict=True)]
        made = built(cache, *each)
        bank.select(made.adapters, CPU)
        replayed = graphs.forward(made)
        assert replayed is not None
        own = [SLOTS[one.adapter] for one in made.order for _ in one.tokens]
        assert replayed[:, 0].tolist() == made.tokens.tolist()
        assert replayed[:, 1].tolist() == (own if made.adapters else [-2] * len(own))
