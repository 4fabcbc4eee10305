from __future__ import annotations

import torch

from engine.core.plan import Plan, Work
from engine.core.sampling_params import SamplingParams
from engine.worker.batch import BatchBuilder

PARAMS = SamplingParams(max_tokens=5)
PADDING = 99


def builder(device: str = "cpu") -> BatchBuilder:
    return BatchBuilder(4, PADDING, torch.device(device))


def test_decodes_come_first_grouped_by_their_own_length_then_chunks() -> None:
    long = Work(1, [11], 70, list(range(20, 38)), PARAMS, True)
    chunk = Work(2, [5, 6, 7], 6, [40, 41, 42], None, False)
    short = Work(3, [12], 9, [50, 51, 52], PARAMS, True)
    last = Work(4, [8, 9], 0, [60], PARAMS, False)
    batch = builder().build(Plan([long, chunk, short, last]))
    assert batch.tokens.tolist() == [12, 11, 5, 6, 7, 8, 9]
    assert batch.positions.tolist() == [9, 70, 6, 7, 8, 0, 1]
    # Position 9 is in the third block of four; position 70 in the eighteenth.
    assert batch.attention.slots.tolist() == [
        52 * 4 + 1,
        37 * 4 + 2,
        41 * 4 + 2,
        41 * 4 + 3,
        42 * 4,
        60 * 4,
        60 * 4 + 1,
    ]
    assert [draw.request_id for draw in batch.draws] == [3, 1, 4]
    assert batch.drawn_rows.tolist() == [0, 1, 6]

    near, far = batch.attention.decodes
    assert (near.start, near.stop, near.seq_lens.tolist()) == (0, 1, [10])
    assert near.block_tables.tolist() == [[50, 51, 52, PADDING]]
    assert (far.start, far.stop, far.seq_lens.tolist()) == (1, 2, [71])
    assert far.block_tables.tolist() == [[*range(20, 38), *[PADDING] * 14]]

    (prefill,) = batch.attention.prefills
    assert (prefill.start, prefill.stop) == (2, 7)
    assert prefill.query_starts.tolist() == [0, 3, 5]
    assert prefill.seq_lens.tolist() == [9, 2]
    assert prefill.block_tables[0, :3].tolist() == [40, 41, 42]
    assert prefill.block_tables[1, :2].tolist() == [60, PADDING]


def test_blocks_beyond_the_new_tokens_are_not_read() -> None:
    """A request holds blocks for its whole prompt from the start."""
    batch = builder().build(Plan([Work(1, [1, 2], 0, [7, 8, 9], None, False)]))
    assert batch.attention.prefills[0].block_tables.tolist() == [[7]]
    assert batch.draws == []
    assert batch.drawn_rows.tolist() == []


def test_a_batch_of_decodes_alone_has_no_prefill_part() -> None:
    works = [Work(i, [i], 3, [i], PARAMS, True) for i in range(3)]
    batch = builder().build(Plan(works))
    assert batch.attention.prefills == []
    (group,) = batch.attention.decodes
    assert (group.start, group.stop) == (0, 3)
    assert group.block_tables.shape == (3, 4)
