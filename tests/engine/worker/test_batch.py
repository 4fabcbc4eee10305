from __future__ import annotations

import torch

from engine.core.plan import Plan, ScheduledRequest
from engine.core.request import Sibling
from engine.core.sampling_params import SamplingParams
from engine.kv_cache import KVCache, KVShape
from engine.worker.batch import BatchBuilder

PARAMS = SamplingParams(max_tokens=5)
PADDING = 99


def builder(device: str = "cpu", *, invariant: bool = False) -> BatchBuilder:
    """Over a cache whose blocks of four are too small for C: torch's backend pads sequences."""
    where = torch.device(device)
    cache = KVCache(KVShape(1, 1, 16), PADDING, 4, where, torch.float32)
    return BatchBuilder(cache, where, invariant=invariant)


def test_decodes_come_first_grouped_by_their_own_length_then_chunks() -> None:
    long = ScheduledRequest(1, [11], 70, list(range(20, 38)), PARAMS, True)
    chunk = ScheduledRequest(2, list(range(100, 120)), 6, list(range(40, 47)), None, False)
    short = ScheduledRequest(3, [12], 9, [50, 51, 52], PARAMS, True)
    last = ScheduledRequest(4, list(range(200, 217)), 0, [60, 61, 62, 63, 64], PARAMS, False)
    batch = builder().build(Plan([long, chunk, short, last]))
    assert batch.tokens.tolist() == [12, 11, *range(100, 120), *range(200, 217)]
    assert batch.positions.tolist() == [9, 70, *range(6, 26), *range(17)]
    # Position 9 is in the third block of four; position 70 in the eighteenth.
    slots = batch.attention.slots.tolist()
    assert slots[:5] == [52 * 4 + 1, 37 * 4 + 2, 41 * 4 + 2, 41 * 4 + 3, 42 * 4]
    assert slots[22:24] == [60 * 4, 60 * 4 + 1]
    assert [sampling_row.request_id for sampling_row in batch.sampling_rows] == [3, 1, 4]
    assert batch.logits_indices.tolist() == [0, 1, 38]

    near, far = batch.attention.decodes
    assert (near.start, near.stop, near.new, near.seq_lens.tolist()) == (0, 1, 1, [10])
    assert near.block_tables.tolist() == [[50, 51, 52, *[PADDING] * 13]]
    assert (far.start, far.stop, far.new, far.seq_lens.tolist()) == (1, 2, 1, [71])
    assert far.block_tables.tolist() == [[*range(20, 38), *[PADDING] * 30]]

    (prefill,) = batch.attention.prefills
    assert (prefill.start, prefill.stop) == (2, 39)
    assert prefill.query_starts.tolist() == [0, 20, 37]
    assert prefill.seq_lens.tolist() == [26, 17]
    assert prefill.block_tables[0, :8].tolist() == [*range(40, 47), PADDING]
    assert prefill.block_tables[1, :6].tolist() == [*range(60, 65), PADDING]


def test_drafts_are_rows_of_a_decode_unless_they_cross_into_another_length() -> None:
    alone = ScheduledRequest(1, [1], 20, list(range(6)), PARAMS, True)
    three = ScheduledRequest(
        2, [2, 3, 4], 30, list(range(10, 19)), PARAMS, True, [0] * 31, 30, num_draft_tokens=2
    )
    also = ScheduledRequest(
        3, [5, 6, 7], 40, list(range(20, 31)), PARAMS, True, [0] * 41, 30, num_draft_tokens=2
    )
    crossing = ScheduledRequest(
        4, [8, 9], 63, list(range(40, 57)), PARAMS, True, [0] * 64, 30, num_draft_tokens=1
    )
    batch = builder().build(Plan([three, alone, crossing, also]))
    assert batch.tokens.tolist() == list(range(1, 10))
    one, several = batch.attention.decodes
    assert (one.start, one.stop, one.new, one.seq_lens.tolist()) == (0, 1, 1, [21])
    assert (several.start, several.stop, several.new, several.seq_lens.tolist()) == (1, 7, 3, [33, 43])
    (prefill,) = batch.attention.prefills
    assert (prefill.start, prefill.stop, prefill.query_starts.tolist()) == (7, 9, [0, 2])
    assert batch.logits_indices.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert [
        (sampling_row.request_id, sampling_row.draft_tokens) for sampling_row in batch.sampling_rows[1:4]
    ] == [
        (2, []),
        (2, [3]),
        (2, [3, 4]),
    ]


def test_siblings_that_begin_are_drawn_from_their_leaders_row() -> None:
    twin = SamplingParams(max_tokens=9)
    scheduled = ScheduledRequest(
        1, [1, 2], 0, [3], PARAMS, False, [1, 2], 2, siblings=[Sibling(7, twin), Sibling(8, twin)]
    )
    batch = builder().build(Plan([scheduled]))
    assert [
        (sampling_row.request_id, sampling_row.sampling, sampling_row.position)
        for sampling_row in batch.sampling_rows
    ] == [
        (1, PARAMS, 2),
        (7, twin, 2),
        (8, twin, 2),
    ]
    assert batch.logits_indices.tolist() == [1, 1, 1]


def test_deterministic_batches_have_one_path() -> None:
    scheduled_requests = [
        ScheduledRequest(1, [1], 20, list(range(6)), PARAMS, True),
        ScheduledRequest(2, [2] * 30, 0, list(range(10, 18)), None, False),
    ]
    attention = builder(invariant=True).build(Plan(scheduled_requests)).attention
    assert attention.decodes == []
    (prefill,) = attention.prefills
    assert prefill.query_starts.tolist() == [0, 1, 31]


def test_on_a_gpu_all_decodes_are_one_group() -> None:
    scheduled_requests = [ScheduledRequest(i, [i], 100 * i, list(range(80)), PARAMS, True) for i in range(3)]
    (group,) = builder("meta").build(Plan(scheduled_requests)).attention.decodes
    assert (group.start, group.stop, group.block_tables.shape) == (0, 3, (3, 51))


def test_blocks_beyond_the_new_tokens_are_not_read() -> None:
    """A request holds blocks for its whole prompt from the start."""
    batch = builder().build(Plan([ScheduledRequest(1, [1] * 17, 0, list(range(5, 20)), None, False)]))
    assert batch.attention.prefills[0].block_tables.tolist() == [[5, 6, 7, 8, 9]]
    assert batch.sampling_rows == []
    assert batch.logits_indices.tolist() == []


def test_a_batch_of_decodes_alone_has_no_prefill_part() -> None:
    scheduled_requests = [ScheduledRequest(i, [i], 3, [i], PARAMS, True) for i in range(3)]
    batch = builder().build(Plan(scheduled_requests))
    assert batch.attention.prefills == []
    (group,) = batch.attention.decodes
    assert (group.start, group.stop) == (0, 3)
    assert group.block_tables.shape == (3, 16)


def test_long_sequences_are_not_all_gathered_at_once() -> None:
    scheduled_requests = [ScheduledRequest(i, [i], 1000, list(range(251)), PARAMS, True) for i in range(5)]
    groups = builder().build(Plan(scheduled_requests)).attention.decodes
    assert [(group.start, group.stop) for group in groups] == [(0, 2), (2, 4), (4, 5)]
    assert [len(group.block_tables) for group in groups] == [2, 2, 1]
    assert [len(group.seq_lens) for group in groups] == [2, 2, 1]
