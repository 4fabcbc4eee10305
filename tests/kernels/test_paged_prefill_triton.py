from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.paged_kv import PagedKV
from kernels.paged_prefill import paged_prefill, paged_prefill_triton
from kernels.store_kv import quantize, store_kv
from tests.kernels.paged import scatter
from tests.kernels.triton_cases import assert_close, bfloat16_products, poisoned
from tests.sampling import diagonal

__all__ = ["bfloat16_products", "poisoned"]

pytestmark = pytest.mark.usefixtures("bfloat16_products")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None = None,
) -> Tensor:
    """The formula in float64: ``q`` [new, heads, d] are the last positions of ``k``, ``v`` [length, kv_heads, d]."""
    q, k, v = (x.double().transpose(0, 1) for x in (q, k, v))
    group, (_, new, _), length = len(q) // len(k), q.shape, k.shape[1]
    scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    back = torch.arange(length - new, length)[:, None] - torch.arange(length)
    unseen = (back < 0) | (back >= (window or length))
    scores = scores.masked_fill(unseen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, new, 1)], -1)
    weights = torch.softmax(scores, -1)[..., :length]
    return (weights @ v.repeat_interleave(group, 0)).transpose(0, 1)


def check(
    new: list[int],
    lengths: list[int],
    heads: int = 2,
    kv_heads: int = 1,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float32,
    *,
    block_size: int = 16,
    window: int | None = None,
    softcap: float | None = None,
    stored: torch.dtype | None = None,
    sinks: Tensor | None = None,
    **options: int,
) -> None:
    """All that no token sees is NaN: past the end, before all windows, and other sequences' blocks. Queries are a
    view of a wider product."""
    counts = [-(-length // block_size) for length in lengths]
    total = sum(counts) + 2
    order = (torch.randperm(total - 1) + 1).tolist()
    size = (total, kv_heads, block_size)
    caches = [torch.full((*size, head_dim), torch.nan, dtype=dtype) for _ in "kv"]
    scales: list[Tensor] = []
    if stored is not None:
        caches = [torch.full((*size, head_dim), 0x7F, dtype=torch.int8).view(stored) for _ in "kv"]
        scales = [torch.full(size, torch.nan) for _ in "kv"]
    tables = torch.zeros(len(lengths), max([1, *counts]) + 1, dtype=torch.int64)
    wide = torch.randn(sum(new), heads + 2, head_dim).to(dtype)
    starts = torch.tensor([0, *new]).cumsum(0)
    expected = []
    for s, (count, length) in enumerate(zip(new, lengths, strict=True)):
        tables[s, : counts[s]] = torch.tensor([order.pop() for _ in range(counts[s])], dtype=torch.int64)
        known = []
        seen = torch.arange(0 if window is None else max(0, length - count + 1 - window), length)
        places = tables[s, seen // block_size], slice(None), seen % block_size
        for i, cache in enumerate(caches):
            x = torch.randn(length, kv_heads, head_dim).to(dtype)
            if stored is None:
                cache[places] = x[seen]
            else:
                units, unit = quantize(x, stored)
                cache.view(torch.int8)[places] = units.view(torch.int8)[seen]
                scales[i][places] = unit[seen]
                x = units.double() * unit[..., None]
            known.append(x)
        q = wide[starts[s] : starts[s + 1], :heads]
        expected.append(attention(q, *known, head_dim**-0.5, window, softcap, sinks))
    kv = PagedKV(*caches, tables, torch.tensor(lengths), *(scales or (None, None)))
    out = paged_prefill_triton(
        wide[:, :heads], kv, starts, head_dim**-0.5, window, softcap, sinks=sinks, **options
    )
    assert out.shape == (sum(new), heads, head_dim)
    # Weights of quantized values are bfloat16 where queries are float16.
    assert_close(out.bfloat16() if stored and dtype == torch.float16 else out, torch.cat(expected))


@pytest.mark.parametrize(
    ("new", "lengths"),
    [
        pytest.param([1], [1], id="one-token"),
        pytest.param([15], [15], id="block-minus-1"),
        pytest.param([16], [16], id="one-block"),
        pytest.param([17], [17], id="block-plus-1"),
        pytest.param([31, 32, 33], [31, 32, 33], id="tile-edges"),
        pytest.param([15, 16, 17], [63, 64, 65], id="late-chunks-at-tile-edges"),
        pytest.param([1, 1, 1, 1], [32, 33, 1, 100], id="chunks-of-one-token"),
        pytest.param([5, 0, 40, 0, 0, 3], [70, 9, 40, 0, 33, 3], id="some-without-tokens"),
        pytest.param([0, 7], [0, 7], id="an-empty-first"),
        pytest.param([3, 130], [3, 150], id="many-tiles"),
    ],
)
def test_equals_the_formula(new: list[int], lengths: list[int]) -> None:
    check(new, lengths)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "dtype"),
    diagonal([(3, 3, 64), (7, 1, 80), (8, 2, 96), (8, 1, 128), (2, 2, 256)], DTYPES),
)
def test_heads_of_all_sizes_and_groups(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    check([20, 0, 1], [50, 4, 9], heads, kv_heads, head_dim, dtype)


@pytest.mark.parametrize(
    ("window", "softcap"),
    [(1, None), (2, 2.0), (15, None), (33, None), (64, 2.0), (1000, None), (None, 2.0), (None, 50.0)],
)
def test_a_window_and_a_cap(window: int | None, softcap: float | None) -> None:
    check([45, 20, 1, 0], [45, 130, 90, 7], window=window, softcap=softcap)


@pytest.mark.parametrize(
    ("window", "stored"), [(None, None), (20, None), (None, torch.int8), (20, torch.float8_e4m3fn)]
)
def test_sinks_take_weight_from_what_is_seen(window: int | None, stored: torch.dtype | None) -> None:
    sinks = torch.tensor([-1.0, 4.0, 300.0, -300.0])
    check([45, 20, 1, 0], [45, 130, 90, 7], 4, 2, window=window, stored=stored, sinks=sinks)


@pytest.mark.parametrize(
    ("window", "dtype", "stored"),
    diagonal([None, 20], [torch.bfloat16, torch.float32, torch.float16], [torch.int8, torch.float8_e4m3fn]),
)
def test_a_quantized_cache(window: int | None, dtype: torch.dtype, stored: torch.dtype) -> None:
    check([20, 0, 33], [20, 3, 66], 4, 2, 64, dtype, window=window, stored=stored)


@pytest.mark.parametrize(("block_size", "window"), diagonal([1, 3, 16, 24, 32, 48, 96, 128], [None, 50]))
def test_blocks_of_other_sizes(block_size: int, window: int | None) -> None:
    check([33, 40], [33, 170], block_size=block_size, window=window)


@pytest.mark.parametrize("block_size", [24, 48, 96])
def test_blocks_of_odd_sizes_in_a_quantized_cache(block_size: int) -> None:
    check([33, 40], [33, 170], block_size=block_size, stored=torch.int8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_tiles(dtype: torch.dtype) -> None:
    check([1, 1, 17, 1], [1, 50, 40, 17], 4, 2, dtype=dtype, tile=16)


def test_a_group_of_more_heads_than_a_tile_has_rows() -> None:
    check([3], [20], 130, 1)


@pytest.mark.usefixtures("products_row_by_row")
@pytest.mark.parametrize(
    ("cuts", "window"), [([32, 68], None), ([1, 99], 20), ([31, 2, 67], 40), ([20] * 5, None)]
)
def test_is_the_same_to_the_bit_however_a_prompt_is_chunked(cuts: list[int], window: int | None) -> None:
    """And whatever else is in the batch."""
    paged = scatter([100, 40], kv_heads=1, head_dim=64, block_size=16)
    q = torch.randn(100, 2, 64)
    both, starts = torch.cat([q, q[:7]]), torch.tensor([0, 100, 107])
    whole = paged_prefill_triton(both, paged.kv(), starts, 0.125, window)[:100]
    done = 0
    for count in cuts:
        starts = torch.tensor([0, count])
        kv = PagedKV(paged.k_cache, paged.v_cache, paged.block_tables[:1], torch.tensor([done + count]))
        part = paged_prefill_triton(q[done : done + count], kv, starts, 0.125, window)
        assert torch.equal(part, whole[done : done + count])
        done += count


@pytest.mark.parametrize("stored", [torch.float32, torch.int8])
def test_the_engine_takes_it_where_it_is_told_to(
    stored: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ``store_kv`` writes is what ``paged_prefill`` reads; keys by dimension are the reference's."""
    monkeypatch.setattr("kernels.paged_prefill.on_triton", lambda x: True)
    monkeypatch.setattr("kernels.store_kv.on_triton", lambda x: True)
    k, v, q = torch.randn(20, 2, 64), torch.randn(20, 2, 64), torch.randn(20, 4, 64)
    caches = [torch.zeros(3, 2, 16, 64, dtype=stored) for _ in "kv"]
    scales = [] if stored == torch.float32 else [torch.zeros(3, 2, 16) for _ in "kv"]
    store_kv(k, v, *caches, torch.arange(16, 36), *scales)
    where, starts = (torch.tensor([[1, 2]]), torch.tensor([20])), torch.tensor([0, 20])
    out = paged_prefill(q, PagedKV(*caches, *where, *scales), starts, 0.125)
    tolerance = 1e-5 if stored == torch.float32 else 0.05
    torch.testing.assert_close(out.double(), attention(q, k, v, 0.125, None, None), rtol=0, atol=tolerance)
    if stored == torch.float32:
        keys = caches[0].transpose(2, 3).contiguous().transpose(2, 3)
        kv = PagedKV(keys, caches[1], *where, keys_by_dimension=True)
        torch.testing.assert_close(paged_prefill(q, kv, starts, 0.125), out)


def test_no_tokens() -> None:
    check([0], [0])
    check([0, 0], [5, 0])
