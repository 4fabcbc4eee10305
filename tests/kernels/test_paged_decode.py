from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.paged_decode import paged_decode_reference
from kernels.paged_kv import PagedKV
from kernels.paged_prefill import paged_prefill_reference
from tests.kernels.paged import dense, scatter


@pytest.mark.parametrize(
    ("lengths", "heads", "kv_heads", "head_dim", "block_size"),
    [
        pytest.param([1], 4, 4, 8, 16, id="one-token"),
        pytest.param([15, 16, 17], 4, 2, 16, 16, id="block-16-minus-1-even-plus-1"),
        pytest.param([3, 4, 5], 6, 2, 24, 4, id="block-4-group-3-dim-24"),
        pytest.param([1, 100, 7, 33], 8, 1, 32, 16, id="mixed-lengths-one-kv-head"),
        pytest.param([50] * 5, 7, 7, 12, 1, id="block-1-seven-heads-no-groups"),
        pytest.param([9, 2], 12, 3, 64, 7, id="block-7-group-4"),
    ],
)
def test_equals_dense_attention(
    lengths: list[int], heads: int, kv_heads: int, head_dim: int, block_size: int
) -> None:
    paged = scatter(lengths, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size)
    q = torch.randn(len(lengths), heads, head_dim, generator=torch.Generator().manual_seed(1))
    out = paged_decode_reference(q, paged.kv(), head_dim**-0.5)
    for b in range(len(lengths)):
        expected = dense(q[b : b + 1], paged.keys[b], paged.values[b], head_dim**-0.5)[0]
        torch.testing.assert_close(out[b].double(), expected, rtol=1e-5, atol=1e-5)


def test_a_row_is_the_same_whoever_shares_the_batch() -> None:
    lengths = [40] + [64] * 30 + [5] * 3
    paged = scatter(lengths, kv_heads=2, head_dim=32, block_size=16)
    q = torch.randn(len(lengths), 8, 32, generator=torch.Generator().manual_seed(4))
    together = paged_decode_reference(q, paged.kv(), 0.2)
    for b in (0, 1, 33):
        row = slice(b, b + 1)
        alone = paged_decode_reference(q[row], paged.kv(row), 0.2)
        torch.testing.assert_close(alone[0], together[b], rtol=1e-5, atol=1e-6)


def test_bfloat16_stays_near_float32() -> None:
    paged = scatter([70, 3], kv_heads=2, head_dim=32, block_size=16)
    paged.k_cache.clamp_(-3, 3)
    paged.v_cache.clamp_(-3, 3)
    q = torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(4))
    wide = paged_decode_reference(q, paged.kv(), 0.2)
    narrow = paged_decode_reference(
        q.bfloat16(),
        replace(paged.kv(), keys=paged.k_cache.bfloat16(), values=paged.v_cache.bfloat16()),
        0.2,
    )
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), wide, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 1, 2, 15, 16, 17, 33, 1000])
def test_a_window_and_a_cap_equal_dense_attention(window: int | None, softcap: float | None) -> None:
    lengths = [1, 16, 33, 90, 128]
    paged = scatter(lengths, kv_heads=2, head_dim=16, block_size=16)
    q = torch.randn(len(lengths), 4, 16, generator=torch.Generator().manual_seed(4))
    out = paged_decode_reference(q, paged.kv(), 0.5, window, softcap)
    for b in range(len(lengths)):
        expected = dense(q[b : b + 1], paged.keys[b], paged.values[b], 0.5, window, softcap)[0]
        torch.testing.assert_close(out[b].double(), expected, rtol=1e-5, atol=1e-5)


def test_within_a_window_a_row_is_the_same_whoever_shares_the_batch() -> None:
    lengths = [128, 17, 40, 97]
    paged = scatter(lengths, kv_heads=2, head_dim=16, block_size=16)
    q = torch.randn(len(lengths), 4, 16, generator=torch.Generator().manual_seed(4))
    together = paged_decode_reference(q, paged.kv(), 0.5, 40, 3.0)
    for b in range(len(lengths)):
        row = slice(b, b + 1)
        alone = paged_decode_reference(q[row], paged.kv(row), 0.5, 40, 3.0)
        torch.testing.assert_close(alone[0], together[b], rtol=1e-5, atol=1e-6)


def test_blocks_before_the_window_are_not_read() -> None:
    """Whole tiles of 64 positions: here 128 … 191, in which the window begins, and the last."""
    paged = scatter([200], kv_heads=2, head_dim=16, block_size=16)
    q = torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(4))
    out = paged_decode_reference(q, paged.kv(), 0.5, 20)
    paged.v_cache[paged.block_tables[0, :8]] = torch.nan
    assert torch.equal(paged_decode_reference(q, paged.kv(), 0.5, 20), out)


@pytest.mark.parametrize("group", [1, 2, 3, 4])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (40, None), (150, 3.0)])
def test_a_token_is_the_same_alone_among_guesses_and_in_a_prefill(
    group: int, window: int | None, softcap: float | None
) -> None:
    """But for rounding: libraries choose the order of their sums by shape."""
    paged = scatter([768], kv_heads=2, head_dim=16, block_size=16)
    q = torch.randn(768, 2 * group, 16, generator=torch.Generator().manual_seed(4))
    cache = paged.k_cache, paged.v_cache
    starts = torch.tensor([0, 768])
    prefill = paged_prefill_reference(q, paged.kv(), starts, 0.5, window, softcap)
    # The last is the blocks that a sequence is padded to.
    cuts = [(0, 5, 4), (60, 4, 4), (130, 9, 12), (251, 5, 16), (256, 3, 20), (500, 7, 32), (512, 9, 48)]
    for start, new, blocks in cuts:
        table = paged.block_tables[:, :blocks]

        def decode(first: int, count: int, table: torch.Tensor = table) -> torch.Tensor:
            rows = q[first : first + count]
            return paged_decode_reference(
                rows, PagedKV(*cache, table, torch.tensor([first + count])), 0.5, window, softcap
            )

        together = decode(start, new)
        torch.testing.assert_close(together, prefill[start : start + new], rtol=1e-5, atol=1e-6)
        for i in range(new):
            torch.testing.assert_close(decode(start + i, 1)[0], together[i], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("window", [None, 20])
def test_sinks_take_weight_from_what_is_seen(window: int | None) -> None:
    """Of one token, of guesses, and in a prefill; a sink far above all scores leaves nothing."""
    lengths, sinks = [40, 90, 3], torch.tensor([-2.0, 0.5, 3.0, 300.0, -300.0, 1.0])
    paged = scatter(lengths, kv_heads=2, head_dim=16, block_size=16)
    generator = torch.Generator().manual_seed(4)
    for new in (1, 3):
        q = torch.randn(3 * new, 6, 16, generator=generator)
        starts = torch.arange(4) * new
        decoded = paged_decode_reference(q, paged.kv(), 0.5, window, sinks=sinks)
        prefilled = paged_prefill_reference(q, paged.kv(), starts, 0.5, window, sinks=sinks)
        for b in range(3):
            rows = slice(new * b, new * b + new)
            expected = dense(q[rows], paged.keys[b], paged.values[b], 0.5, window, sinks=sinks)
            for out in (decoded, prefilled):
                torch.testing.assert_close(out[rows].double(), expected, rtol=1e-5, atol=1e-5)
        assert not decoded[:, 3].any()


def test_several_guesses_of_several_sequences_equal_dense_attention() -> None:
    lengths = [40, 33, 64]
    paged = scatter(lengths, kv_heads=2, head_dim=16, block_size=16)
    q = torch.randn(9, 6, 16, generator=torch.Generator().manual_seed(4))
    out = paged_decode_reference(q, paged.kv(), 0.5)
    for b in range(3):
        rows = slice(3 * b, 3 * b + 3)
        expected = dense(q[rows], paged.keys[b], paged.values[b], 0.5)
        torch.testing.assert_close(out[rows].double(), expected, rtol=1e-5, atol=1e-5)
