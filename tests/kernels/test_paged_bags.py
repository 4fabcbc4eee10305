from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.paged_bags import Bags, paged_bags
from kernels.paged_decode import paged_decode_reference
from kernels.paged_kv import PagedKV
from kernels.paged_prefill import paged_prefill_reference
from tests.kernels.paged import Paged, dense, scatter


def turned(paged: Paged) -> PagedKV:
    keys = paged.k_cache.transpose(2, 3).contiguous().transpose(2, 3)
    return replace(paged.kv(), keys=keys, keys_by_dimension=True)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 1, 15, 16, 17, 40, 1000])
@pytest.mark.parametrize(
    ("lengths", "new", "block_size"),
    [
        pytest.param([1], 1, 16, id="one-token"),
        pytest.param([33], 2, 16, id="one-sequence-two-new"),
        pytest.param([16, 33, 90, 17], 1, 16, id="mixed-lengths"),
        pytest.param([9, 70, 3], 3, 7, id="three-new-block-7"),
        pytest.param([64, 64], 1, 16, id="whole-blocks"),
    ],
)
def test_equals_dense_attention(
    lengths: list[int], new: int, block_size: int, window: int | None, softcap: float | None
) -> None:
    paged = scatter(lengths, kv_heads=2, head_dim=16, block_size=block_size)
    q = torch.randn(new * len(lengths), 6, 16, generator=torch.Generator().manual_seed(1))
    kv = turned(paged)
    bags = Bags.of(kv.block_tables, kv.seq_lens, new, 6, kv.keys.shape, window)
    out = paged_bags(q, kv, bags, 0.5, softcap)
    for s in range(len(lengths)):
        rows = slice(new * s, new * (s + 1))
        expected = dense(q[rows], paged.keys[s], paged.values[s], 0.5, window, softcap)
        torch.testing.assert_close(out[rows].double(), expected, rtol=1e-5, atol=1e-5)


def test_a_first_token_of_one_head_is_read() -> None:
    """Its rows are repeated once, and are its own to write all the same."""
    paged = scatter([1], kv_heads=1, head_dim=16, block_size=16)
    kv = turned(paged)
    q = torch.randn(1, 1, 16, generator=torch.Generator().manual_seed(1))
    bags = Bags.of(kv.block_tables, kv.seq_lens, 1, 1, kv.keys.shape, None)
    torch.testing.assert_close(paged_bags(q, kv, bags, 0.5), paged.values[0])


@pytest.mark.parametrize("window", [None, 20])
def test_sinks_take_weight_from_what_is_seen(window: int | None) -> None:
    sinks = torch.tensor([-2.0, 0.5, 3.0, 300.0])
    paged = scatter([40, 90, 3], kv_heads=2, head_dim=16, block_size=16)
    kv = turned(paged)
    q = torch.randn(6, 4, 16, generator=torch.Generator().manual_seed(1))
    bags = Bags.of(kv.block_tables, kv.seq_lens, 2, 4, kv.keys.shape, window)
    out = paged_bags(q, kv, bags, 0.5, sinks=sinks)
    for s in range(3):
        rows = slice(2 * s, 2 * s + 2)
        expected = dense(q[rows], paged.keys[s], paged.values[s], 0.5, window, sinks=sinks)
        torch.testing.assert_close(out[rows].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_stay_near_float32(dtype: torch.dtype) -> None:
    paged = scatter([70, 3], kv_heads=2, head_dim=32, block_size=16)
    kv = turned(paged)
    kv = replace(kv, keys=kv.keys.clamp(-3, 3), values=kv.values.clamp(-3, 3))
    q = torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(1))
    bags = Bags.of(paged.block_tables, paged.seq_lens, 1, 4, kv.keys.shape, None)
    wide = paged_bags(q, kv, bags, 0.2)
    kv = replace(kv, keys=kv.keys.to(dtype), values=kv.values.to(dtype))
    narrow = paged_bags(q.to(dtype), kv, bags, 0.2)
    assert narrow.dtype == dtype
    torch.testing.assert_close(narrow.float(), wide, rtol=0.05, atol=0.05)


def test_a_lone_sequence_is_read_to_its_end_and_no_further() -> None:
    paged = scatter([21], kv_heads=2, head_dim=16, block_size=16)
    bags = Bags.of(paged.block_tables, paged.seq_lens, 1, 4, paged.k_cache.shape, None)
    assert bags.mask is None
    assert len(bags.values) == 4 * 21


def test_other_ways_read_such_keys_too() -> None:
    """A prefill, and guesses too many to be read for one by one."""
    paged = scatter([90], kv_heads=2, head_dim=16, block_size=16)
    q = torch.randn(90, 4, 16, generator=torch.Generator().manual_seed(1))
    expected = paged_decode_reference(q[-9:], paged.kv(), 0.5, 40)
    assert torch.equal(paged_decode_reference(q[-9:], turned(paged), 0.5, 40), expected)
    starts = torch.tensor([0, 90])
    expected = paged_prefill_reference(q, paged.kv(), starts, 0.5, 40)
    torch.testing.assert_close(paged_prefill_reference(q, turned(paged), starts, 0.5, 40), expected)
