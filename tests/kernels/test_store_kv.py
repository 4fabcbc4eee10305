from __future__ import annotations

import pytest
import torch

from kernels.paged_decode import cache_rows, gather, paged_decode_reference
from kernels.paged_kv import PagedKV
from kernels.paged_prefill import paged_prefill_reference
from kernels.store_kv import quantize, store_kv_reference
from tests.kernels.paged import dense


def test_each_token_lands_in_its_slot_and_nothing_else_changes() -> None:
    k_cache, v_cache = torch.zeros(5, 3, 4, 2), torch.zeros(5, 3, 4, 2)
    k, v = torch.randn(4, 3, 2), torch.randn(4, 3, 2)
    slots = torch.tensor([0, 7, 19, 8])
    store_kv_reference(k, v, k_cache, v_cache, slots)
    for t, (block, offset) in enumerate([(0, 0), (1, 3), (4, 3), (2, 0)]):
        assert torch.equal(k_cache[block, :, offset], k[t])
        assert torch.equal(v_cache[block, :, offset], v[t])
    assert int((k_cache != 0).sum()) == k.numel()
    assert int((v_cache != 0).sum()) == v.numel()


def test_keys_may_be_a_slice_of_a_wider_product() -> None:
    wide = torch.randn(2, 6, 4)
    k_cache, v_cache = torch.zeros(1, 2, 8, 4), torch.zeros(1, 2, 8, 4)
    store_kv_reference(wide[:, 2:4], wide[:, 4:], k_cache, v_cache, torch.tensor([3, 5]))
    assert torch.equal(k_cache[0, :, 3], wide[0, 2:4])
    assert torch.equal(v_cache[0, :, 5], wide[1, 4:])


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 3e4])
def test_quantizing_errs_no_more_than_the_formula_says(dtype: torch.dtype, size: float) -> None:
    x = torch.randn(200, 3, 16, generator=torch.Generator().manual_seed(1)) * size
    x[0] = 0
    units, scales = quantize(x, dtype)
    assert units.dtype == dtype
    assert scales.shape == (200, 3)
    error = (units.float() * scales[..., None] - x).abs()
    step = scales[..., None].expand_as(x)
    bound = step / 2 if dtype == torch.int8 else x.abs() / 16 + step / 1024
    assert (error <= bound * 1.001).all()
    assert (units[0].float() == 0).all()


def test_all_bytes_of_float8_widen_to_what_torch_says() -> None:
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    cache = every.view(1, 1, 16, 16)
    rows = cache_rows(torch.zeros(1, 1, dtype=torch.int64), 1)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        found = gather(cache, rows, 1, dtype).view(-1)
        numbers = ~torch.isnan(every.float())
        assert int(numbers.sum()) == 254
        assert torch.equal(found[numbers].float(), every.float()[numbers])
        assert torch.isfinite(found).all()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.int8, 0.03), (torch.float8_e4m3fn, 0.15)])
@pytest.mark.parametrize("window", [None, 70])
def test_attention_over_a_quantized_cache_is_near_that_over_what_was_stored(
    dtype: torch.dtype, tolerance: float, window: int | None
) -> None:
    """In a decode as in a prefill. What nobody has written is made of other numbers' bytes."""
    generator = torch.Generator().manual_seed(3)
    length, blocks = 150, 12
    k, v, q = (torch.randn(length, heads, 16, generator=generator) for heads in (2, 2, 4))
    size = (blocks + 1, 2, 16)
    k_cache = torch.full((*size, 16), 0x7F, dtype=torch.int8).view(dtype)
    v_cache = torch.full((*size, 16), -1, dtype=torch.int8).view(dtype)
    k_scales, v_scales = torch.full(size, 1e30), torch.full(size, 1e30)
    table = torch.randperm(blocks, generator=generator)[None]
    positions = torch.arange(length)
    slots = table[0, positions // 16] * 16 + positions % 16
    store_kv_reference(k, v, k_cache, v_cache, slots, k_scales, v_scales)
    caches, scales = (k_cache, v_cache), (k_scales, v_scales)
    lens, starts = torch.tensor([length]), torch.tensor([0, length])
    prefill = paged_prefill_reference(q, PagedKV(*caches, table, lens, *scales), starts, 0.25, window)
    assert (prefill - dense(q, k, v, 0.25, window)).abs().max() < tolerance
    for new in (1, 3):
        decode = paged_decode_reference(q[-new:], PagedKV(*caches, table, lens, *scales), 0.25, window)
        torch.testing.assert_close(decode, prefill[-new:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.float8_e4m3fn])
def test_a_block_that_held_no_numbers_does_no_harm_to_its_next_owner(dtype: torch.dtype) -> None:
    size = (2, 1, 16)
    caches = [torch.zeros(*size, 8, dtype=dtype) for _ in range(2)]
    scales = [None, None] if dtype == torch.float32 else [torch.zeros(size) for _ in range(2)]
    for bad in (torch.nan, torch.inf):
        x = torch.full((16, 1, 8), bad)
        store_kv_reference(x, x, *caches, torch.arange(16), *scales)
        good = torch.randn(1, 1, 8)
        store_kv_reference(good, good, *caches, torch.tensor([0]), *scales)
        table, lens = torch.zeros(1, 1, dtype=torch.int64), torch.tensor([1])
        q = torch.randn(1, 2, 8)
        out = paged_decode_reference(q, PagedKV(*caches, table, lens, *scales), 1.0)
        torch.testing.assert_close(out[0], good[0].expand(2, 8), rtol=0.1, atol=0.1)
        starts = torch.tensor([0, 1])
        again = paged_prefill_reference(q, PagedKV(*caches, table, lens, *scales), starts, 1.0)
        torch.testing.assert_close(again, out)
