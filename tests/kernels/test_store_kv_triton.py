from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.launch import jit, tl
from kernels.store_kv import store_kv_reference, store_kv_triton, widen
from tests.kernels.triton_cases import poisoned
from tests.sampling import diagonal

__all__ = ["poisoned"]

NARROW = [torch.int8, torch.float8_e4m3fn]


def caches(
    blocks: int, heads: int, block_size: int, head_dim: int, dtype: torch.dtype
) -> tuple[list[Tensor], list[Tensor]]:
    """Both caches, and their scales if they have any, full of what nobody stores."""
    size = (blocks, heads, block_size, head_dim)
    wide = dtype not in NARROW
    stored = [
        torch.full(size, torch.nan if wide else 0x55, dtype=dtype if wide else torch.int8) for _ in "kv"
    ]
    scales = [] if wide else [torch.full(size[:3], torch.nan) for _ in "kv"]
    return [cache.view(dtype) for cache in stored], scales


def assert_same(actual: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize(
    ("dtype", "tokens", "heads", "block_size", "head_dim", "stored"),
    diagonal(
        [
            pytest.param(torch.float32, 0, 1, 16, 64, id="no-token"),
            pytest.param(torch.float32, 1, 1, 16, 64, id="one-token"),
            pytest.param(torch.bfloat16, 5, 2, 16, 80, id="head-dim-80"),
            pytest.param(torch.float16, 15, 3, 16, 96, id="three-heads"),
            pytest.param(torch.bfloat16, 17, 8, 32, 128, id="more-than-a-block"),
            pytest.param(torch.float32, 3, 33, 16, 256, id="several-programs-a-token"),
        ],
        [torch.int8, None, torch.float8_e4m3fn],
    ),
)
def test_writes_what_the_reference_writes_and_nothing_else(
    dtype: torch.dtype, tokens: int, heads: int, block_size: int, head_dim: int, stored: torch.dtype | None
) -> None:
    """To the bit; keys and values are views of one product of queries, keys and values."""
    wide = torch.randn(tokens, 3 * heads, head_dim).to(dtype)
    k, v = wide[:, heads : 2 * heads], wide[:, 2 * heads :]
    slots = torch.randperm(4 * block_size)[:tokens]
    actual, actual_scales = caches(4, heads, block_size, head_dim, stored or dtype)
    expected, expected_scales = ([x.clone() for x in xs] for xs in (actual, actual_scales))
    store_kv_triton(k, v, *actual, slots, *actual_scales)
    store_kv_reference(k, v, *expected, slots, *expected_scales)
    assert_same(actual + actual_scales, expected + expected_scales)


@pytest.mark.parametrize("stored", [torch.float32, *NARROW])
def test_a_padded_row_goes_nowhere(stored: torch.dtype) -> None:
    actual, scales = caches(2, 2, 16, 64, stored)
    before = [x.clone() for x in (*actual, *scales)]
    k = torch.randn(3, 2, 64)
    store_kv_triton(k, k, *actual, torch.tensor([-1, 17, -20]), *scales)
    expected, expected_scales = ([*before[:2]], [*before[2:]])
    store_kv_reference(k[1:2], k[1:2], *expected, torch.tensor([17]), *expected_scales)
    assert_same(actual + scales, before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("stored", [None, *NARROW], ids=["as-is", "int8", "fp8"])
def test_no_value_is_stored_that_is_not_finite(stored: torch.dtype | None, dtype: torch.dtype) -> None:
    x = torch.randn(5, 1, 64).to(dtype)
    x[0, 0, 3] = torch.nan
    x[1, 0, :2] = torch.inf
    x[2, 0, 5] = -torch.inf
    x[3] = torch.nan
    x[4] = 0
    actual, scales = caches(1, 1, 16, 64, stored or dtype)
    expected, expected_scales = ([y.clone() for y in ys] for ys in (actual, scales))
    store_kv_triton(x, x, *actual, torch.arange(5), *scales)
    store_kv_reference(x, x, *expected, torch.arange(5), *expected_scales)
    assert_same(actual[1:] + scales, expected[1:] + expected_scales)
    assert torch.isfinite(actual[1][0, 0, :5].float()).all()
    if stored is None:
        assert torch.isnan(actual[0][0, 0, 0, 3])
    else:
        assert_same(actual[:1], expected[:1])
        assert (scales[1][0, 0, 3:5] == 0).all()


@pytest.mark.parametrize("stored", NARROW)
@pytest.mark.parametrize("size", [1e-42, 1e-30, 1.0, 3e4, 1e35])
def test_every_rounding_is_torchs(stored: torch.dtype, size: float) -> None:
    """Rows that hold the largest number, and all halves between two numbers of the cache."""
    steps = torch.arange(-127, 127).float() + 0.5
    every = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    every = torch.cat([every, (every[1:] + every[:-1]) / 2])
    largest = 127.0 if stored == torch.int8 else 448.0
    numbers = steps if stored == torch.int8 else torch.cat([every, -every])
    numbers = torch.cat([numbers, torch.rand(769 - len(numbers)) * largest])[: 3 * 255].view(3, 1, 255)
    x = torch.cat([numbers, torch.full((3, 1, 1), largest)], -1) * size
    actual, scales = caches(1, 1, 16, 256, stored)
    expected, expected_scales = ([y.clone() for y in ys] for ys in (actual, scales))
    store_kv_triton(x, x, *actual, torch.arange(3), *scales)
    store_kv_reference(x, x, *expected, torch.arange(3), *expected_scales)
    assert_same(actual + scales, expected + expected_scales)


@jit
def _widen_kernel(x, out, FP8: tl.constexpr):
    places = tl.arange(0, 256)
    tl.store(out + places, widen(tl.load(x + places), FP8))


@pytest.mark.parametrize("dtype", NARROW)
def test_all_bytes_widen_to_what_torch_says(dtype: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.uint8)
    out = torch.full((256,), torch.nan)
    _widen_kernel[(1,)](every.view(torch.int8), out, FP8=dtype == torch.float8_e4m3fn)
    expected = every.view(dtype).float()
    numbers = ~torch.isnan(expected)
    assert torch.equal(out[numbers], expected[numbers])
    assert torch.isfinite(out).all()
