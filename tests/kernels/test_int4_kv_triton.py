from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from kernels.flash_decoding import paged_decode_triton
from kernels.flash_prefill import paged_prefill_triton
from kernels.paged_decode import paged_decode_reference
from kernels.paged_prefill import paged_prefill_reference
from kernels.store_int4_kv import store_int4_kv_reference, store_int4_kv_triton
from tests.kernels.test_int4_kv import cache, read
from tests.kernels.triton_cases import poisoned

__all__ = ["poisoned"]


def assert_same(actual: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.parametrize(
    ("heads", "block_size", "head_dim", "dtype"),
    [
        pytest.param(2, 16, 64, torch.float32, id="groups"),
        pytest.param(1, 7, 80, torch.bfloat16, id="block-7-dim-80"),
        pytest.param(3, 4, 192, torch.float16, id="three-groups-a-half"),
    ],
)
def test_writes_what_the_reference_writes_and_nothing_else(
    heads: int, block_size: int, head_dim: int, dtype: torch.dtype
) -> None:
    """To the bit, in steps that begin, grow and fill blocks, beside rows that pad a graph's batch."""
    actual = cache(6, heads, block_size, head_dim)
    expected = [tensor.clone() for tensor in actual]
    ends = [0, 1, 2, block_size + 2, 2 * block_size, 2 * block_size + 3]
    order = torch.tensor([3, 0, 5])
    for first, last in pairwise(ends):
        positions = torch.arange(first, last)
        mine = order[positions // block_size] * block_size + positions % block_size
        # Another sequence beside it.
        slots = torch.cat([mine, torch.tensor([2 * block_size + first % block_size])])
        wide = torch.randn(len(slots) + 2, 3 * heads, head_dim).to(dtype)
        k, v = wide[:, heads : 2 * heads], wide[:, 2 * heads :]
        store_int4_kv_triton(
            k,
            v,
            actual[0],
            actual[1],
            torch.cat([torch.tensor([-1]), slots, torch.tensor([-9])]),
            *actual[2:],
        )
        store_int4_kv_reference(k[1:-1], v[1:-1], *expected[:2], slots, *expected[2:])
        assert_same(actual, expected)


def test_what_is_not_finite_is_stored_finite() -> None:
    k = torch.randn(5, 1, 64)
    k[0, 0, 3], k[1, 0, 3], k[2, 0, 4], k[3] = torch.nan, torch.inf, -1e30, torch.nan
    actual = cache(1, 1, 16, 64, scales=0.0)
    expected = [tensor.clone() for tensor in actual]
    store_int4_kv_triton(k, k, *actual[:2], torch.arange(5), *actual[2:])
    store_int4_kv_reference(k, k, *expected[:2], torch.arange(5), *expected[2:])
    assert_same(actual, expected)
    assert all(torch.isfinite(scales).all() for scales in actual[2:])


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "window", "new"),
    [
        pytest.param(4, 2, 64, None, 1, id="group-2"),
        pytest.param(7, 1, 80, 33, 1, id="window-dim-80"),
        pytest.param(4, 2, 64, None, 5, id="drafts"),
    ],
)
def test_attends_as_the_reference_does(
    heads: int, kv_heads: int, head_dim: int, window: int | None, new: int
) -> None:
    lens = [70, 9, 33]
    stored = cache(12, kv_heads, 16, head_dim, scales=6e4)
    tables = torch.tensor([[4, 1, 0, 9, 3], [7, 11, 11, 11, 11], [5, 2, 8, 11, 11]])
    for table, length in zip(tables, lens, strict=True):
        positions = torch.arange(length)
        slots = table[positions // 16] * 16 + positions % 16
        k, v = torch.randn(2, length, kv_heads, head_dim)
        k[:, :, 3] += 50
        store_int4_kv_reference(k, v, *stored[:2], slots, *stored[2:])
    kv = read(stored, tables, lens)
    q = torch.randn(3 * new, heads, head_dim)
    q[..., 3] /= 50
    scale = head_dim**-0.5
    torch.testing.assert_close(
        paged_decode_triton(q, kv, scale, window, softcap=30.0),
        paged_decode_reference(q, kv, scale, window, softcap=30.0),
        rtol=1e-4,
        atol=1e-4,
    )
    starts = torch.tensor([0, 70, 79, 112])
    q = torch.randn(112, heads, head_dim)
    torch.testing.assert_close(
        paged_prefill_triton(q, kv, starts, scale, window),
        paged_prefill_reference(q, kv, starts, scale, window),
        rtol=1e-4,
        atol=1e-4,
    )
