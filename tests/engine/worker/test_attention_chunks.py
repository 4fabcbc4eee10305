"""A batch in chunks of the context: each piece sees what is before it in its chunk, and nothing else."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from engine.attention.metadata import CommonAttentionMetadata
from engine.core.plan import Plan, ScheduledRequest
from engine.errors import StartupError
from engine.kv_cache import KVCache, KVShape
from engine.worker.attention_chunks import by_token, in_chunks
from engine.worker.batch import BatchBuilder

CPU = torch.device("cpu")
CHUNK, BLOCK = 12, 4


def shape() -> KVShape:
    return KVShape(2, 1, 16, (None, CHUNK), chunked=True)


def request(number: int, start: int, new: int) -> ScheduledRequest:
    blocks = list(range(20 * number, 20 * number + -(-(start + new) // BLOCK)))
    return ScheduledRequest(number, list(range(new)), start, blocks, None, False)


def seen(common: CommonAttentionMetadata) -> list[list[int]]:
    """For each row, the slots of the tokens that it sees."""
    found = []
    bounds, lengths = common.query_starts.tolist(), common.seq_lens.tolist()
    for table, (first, last), length in zip(
        common.block_tables.tolist(), pairwise(bounds), lengths, strict=True
    ):
        for row in range(first, last):
            end = length - (last - row) + 1
            found.append([table[p // BLOCK] * BLOCK + p % BLOCK for p in range(end)])
    return found


@pytest.mark.parametrize(
    "asked",
    [
        [(0, 1), (3, 1), (11, 1), (12, 1), (40, 1)],
        [(0, 30)],
        [(12, 12), (5, 7), (11, 2)],
        [(20, 1), (35, 3), (23, 1), (0, 50)],
        [(22, 5), (8, 1), (3, 40)],
        [(35, 2), (10, 3), (0, 24), (24, 1)],
    ],
)
@pytest.mark.parametrize("invariant", [False, True])
def test_a_row_sees_its_chunk_up_to_itself(asked: list[tuple[int, int]], invariant: bool) -> None:
    cache = KVCache(shape(), 200, BLOCK, CPU, torch.float32)
    assert cache.chunks == [[CHUNK]]
    builder = BatchBuilder(cache, CPU, invariant=invariant)
    batch = builder.build(Plan([request(i, *one) for i, one in enumerate(asked)]))
    (common,) = batch.common
    ends = common.seq_lens.numpy()
    counts = common.query_starts.diff().numpy()
    part = in_chunks(common, ends - counts, counts, CHUNK)
    expected = [
        row[position // CHUNK * CHUNK :]
        for row, position in zip(seen(common), batch.positions.tolist(), strict=True)
    ]
    assert seen(part) == expected
    groups, prefills = part.groups()
    rows = [(group.start, group.stop) for group in (*groups, *prefills)]
    assert rows[0][0] == 0 and rows[-1][1] == len(expected)
    assert all(stop == start for (_, stop), (start, _) in pairwise(rows))
    for group in groups:
        assert len(group.seq_lens) * group.new == group.stop - group.start
    (_, plain), (_, own) = cache.by_layer(batch.attention)
    assert plain is batch.attention and own is batch.attention.in_chunks[CHUNK]


def test_padding_of_a_recording_stays_empty() -> None:
    tables = torch.arange(40).view(4, 10)
    common = CommonAttentionMetadata(
        4, torch.zeros(4), tables, torch.arange(5), torch.tensor([0, 12, 13, 40]), BLOCK, []
    )
    part = by_token(common, CHUNK)
    assert part.seq_lens.tolist() == [0, 12, 1, 4]
    assert part.block_tables[:, 0].tolist() == [0, 10, 23, 39]
    part = by_token(common, CHUNK, 2)
    assert part.seq_lens.tolist() == [0, 0, 11, 12, 12, 1, 3, 4]
    assert part.block_tables[:, 0].tolist() == [0, 0, 10, 10, 20, 23, 39, 39]


def test_a_block_that_does_not_divide_the_chunks_is_refused() -> None:
    with pytest.raises(StartupError, match=r"--block-size 8 does not divide .*12 tokens"):
        KVCache(shape(), 4, 8, CPU, torch.float32)
