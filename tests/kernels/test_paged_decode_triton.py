from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import flash_decoding
from kernels.flash_decoding import paged_decode_triton
from kernels.kv_splits import decode_workspace
from kernels.paged_kv import PagedKV
from kernels.store_kv import quantize
from tests.kernels.paged import Paged, dense, scatter
from tests.kernels.triton_cases import assert_close, bfloat16_products, poisoned
from tests.sampling import diagonal, slow

__all__ = ["bfloat16_products", "poisoned"]
pytestmark = pytest.mark.usefixtures("bfloat16_products")

SPLIT = 128
"""Of a float32 cache with a head size of 128."""
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
QUANTIZED = [torch.int8, torch.float8_e4m3fn]


def cache(lengths: list[int], kv_heads: int, head_dim: int, block_size: int = 16) -> Paged:
    """Fresh numbers, and NaN wherever no sequence has any; table entries past an end name a block that is not there."""
    seed = int(torch.randint(1 << 30, ()))
    paged = scatter(lengths, kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, seed=seed)
    for caches in (paged.k_cache, paged.v_cache):
        caches[caches.abs() == 1e4] = torch.nan
    for table, length in zip(paged.block_tables, lengths, strict=True):
        table[-(-length // block_size) :] = 1 << 40
    return paged


def expected(
    q: Tensor,
    paged: Paged,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    rows = q.unflatten(0, (len(paged.seq_lens), -1))
    found = []
    for s in range(len(rows)):
        # Tokens before the sequence's start see nothing.
        new = min(rows.shape[1], len(paged.keys[s]))
        out = torch.zeros_like(rows[s], dtype=torch.float64)
        if new:
            out[-new:] = dense(rows[s, -new:], paged.keys[s], paged.values[s], scale, window, softcap, sinks)
        found.append(out)
    return torch.cat(found)


def rounded(paged: Paged, dtype: torch.dtype) -> Paged:
    keys = [k.to(dtype) for k in paged.keys]
    values = [v.to(dtype) for v in paged.values]
    return Paged(
        keys, values, paged.k_cache.to(dtype), paged.v_cache.to(dtype), paged.block_tables, paged.seq_lens
    )


@pytest.mark.parametrize(
    ("lengths", "heads", "kv_heads", "head_dim", "block_size", "new", "dtype"),
    diagonal(
        [
            pytest.param([1], 4, 1, 64, 16, 1, id="one-token"),
            pytest.param([15, 16, 17, 33], 7, 1, 96, 16, 1, id="block-edges-group-7"),
            pytest.param([63, 64, 65], 4, 4, 80, 16, 1, id="tile-edges-dim-80"),
            pytest.param([9, 70, 2], 16, 2, 64, 7, 1, id="block-7-group-8"),
            pytest.param([40, 0, 130], 4, 2, 256, 32, 1, id="an-empty-slot-dim-256"),
            pytest.param([40, 3, 64], 6, 2, 64, 16, 4, id="four-guesses-one-before-the-start"),
            pytest.param([37, 90], 10, 1, 64, 16, 7, id="seventy-rows"),
        ],
        DTYPES,
    ),
)
def test_equals_the_formula(
    lengths: list[int],
    heads: int,
    kv_heads: int,
    head_dim: int,
    block_size: int,
    new: int,
    dtype: torch.dtype,
) -> None:
    paged = rounded(cache(lengths, kv_heads, head_dim, block_size), dtype)
    q = torch.randn(len(lengths) * new, heads, head_dim).to(dtype)
    out = paged_decode_triton(q, paged.kv(), head_dim**-0.5)
    assert_close(out, expected(q, paged, head_dim**-0.5))


@pytest.mark.parametrize(
    ("new", "window", "softcap"), diagonal([1, 3], [(None, None), (100, 2.0), (300, None)])
)
def test_the_splits_of_a_sequence_are_reduced(new: int, window: int | None, softcap: float | None) -> None:
    lengths = [SPLIT - 1, SPLIT, SPLIT + 1, 0, 3 * SPLIT]
    paged = cache(lengths, 1, 128)
    q = torch.randn(len(lengths) * new, 2, 128)
    out = paged_decode_triton(q, paged.kv(), 0.1, window, softcap)
    assert_close(out, expected(q, paged, 0.1, window, softcap))


@pytest.mark.parametrize(("new", "window"), diagonal([1, 3], [None, 100]))
def test_sinks_count_once_however_many_splits(new: int, window: int | None) -> None:
    lengths, sinks = [5, SPLIT, SPLIT + 1, 0, 3 * SPLIT], torch.tensor([-1.0, 4.0, 300.0, -300.0])
    paged = cache(lengths, 2, 128)
    q = torch.randn(len(lengths) * new, 4, 128)
    out = paged_decode_triton(q, paged.kv(), 0.1, window, sinks=sinks)
    assert_close(out, expected(q, paged, 0.1, window, sinks=sinks))
    assert out[:, 2].abs().max() < 1e-30


def test_more_splits_than_one_step_of_the_reduction_takes() -> None:
    paged = cache([33 * 64 + 5], 1, 256, 64)
    q = torch.randn(1, 1, 256)
    assert_close(paged_decode_triton(q, paged.kv(), 0.1), expected(q, paged, 0.1))


@pytest.mark.parametrize(
    ("window", "softcap"),
    [(1, None), (2, 1.5), (15, None), (16, 1.5), (17, None), (SPLIT, 1.5), (1000, None)],
)
def test_what_no_token_sees_is_not_read(window: int, softcap: float | None) -> None:
    lengths, new = [1, 33, 2 * SPLIT, 300], 2
    paged = cache(lengths, 1, 128)
    for table, length in zip(paged.block_tables, lengths, strict=True):
        for position in range(length - new + 1 - window):
            for caches in (paged.k_cache, paged.v_cache):
                caches[table[position // 16], :, position % 16] = torch.nan
    q = torch.randn(len(lengths) * new, 2, 128)
    out = paged_decode_triton(q, paged.kv(), 0.1, window, softcap)
    assert_close(out, expected(q, paged, 0.1, window, softcap))


IN_INTEGERS, BY_THE_CHIP = pytest.param("sm_80", id="in-integers"), pytest.param("sm_90", id="by-the-chip")


@pytest.mark.parametrize(
    ("dtype", "stored", "chip"),
    diagonal([torch.bfloat16, torch.float32, torch.float16], QUANTIZED, [IN_INTEGERS, BY_THE_CHIP]),
)
def test_a_quantized_cache(
    dtype: torch.dtype, stored: torch.dtype, chip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash_decoding, "arch", lambda device: chip)
    lengths, new = [1, 0, 515], 2
    paged = cache(lengths, 2, 128)
    caches, scales = [], []
    for wide in (paged.k_cache, paged.v_cache):
        numbers, scale = quantize(wide, stored)
        caches.append(numbers)
        scale[torch.isnan(wide).all(-1)] = torch.nan
        scales.append(scale)
    # Tiny values beside some of a million, which weights in float16 would not reach to, and rows of zeros.
    largest = 1.0 if dtype == torch.float16 else 1e6
    scales[1] *= largest / 10.0 ** torch.randint(0, 12, scales[1].shape) * (torch.rand_like(scales[1]) > 0.2)
    for s, length in enumerate(lengths):
        blocks = paged.block_tables[s, : -(-length // 16)]
        for into, numbers, scale in zip((paged.keys, paged.values), caches, scales, strict=True):
            exact = (numbers.double() * scale[..., None])[blocks]
            into[s] = exact.transpose(1, 2).flatten(0, 1)[:length]
    q = torch.randn(len(lengths) * new, 4, 128).to(dtype)
    kv = PagedKV(*caches, paged.block_tables, paged.seq_lens, *scales)
    out = paged_decode_triton(q, kv, 0.1, 400, 20.0)
    assert_close(out / largest, expected(q, paged, 0.1, 400, 20.0) / largest)


@pytest.mark.usefixtures("products_row_by_row")
def test_a_row_is_the_same_to_the_bit_whoever_shares_the_batch() -> None:
    lengths = [40, 2 * SPLIT + 3, 5, 0, SPLIT]
    paged = cache(lengths, 2, 128)
    q = torch.randn(len(lengths), 4, 128)
    together = paged_decode_triton(q, paged.kv(), 0.2)
    for s, length in enumerate(lengths):
        row = slice(s, s + 1)
        table = paged.block_tables[row, : max(1, -(-length // 16))]
        kv = PagedKV(paged.k_cache, paged.v_cache, table, paged.seq_lens[row])
        alone = paged_decode_triton(q[row], kv, 0.2)
        assert torch.equal(alone[0], together[s])


def test_a_prefix_may_be_shared() -> None:
    paged = cache([2 * SPLIT + 9, 2 * SPLIT + 20], 1, 128)
    paged.block_tables[1, : SPLIT // 16] = paged.block_tables[0, : SPLIT // 16]
    for parts in (paged.keys, paged.values):
        parts[1] = torch.cat([parts[0][:SPLIT], parts[1][SPLIT:]])
    q = torch.randn(2, 4, 128)
    assert_close(paged_decode_triton(q, paged.kv(), 0.2), expected(q, paged, 0.2))


@pytest.mark.parametrize("splits", [1, *slow(3, 4, 6), 7, 99])
def test_sequences_without_room_for_their_splits_are_read_whole(splits: int) -> None:
    lengths = [5, 2 * SPLIT + 1, 30, 2 * SPLIT, 0]
    paged = cache(lengths, 1, 128)
    q = torch.randn(len(lengths), 2, 128)
    workspace = torch.full((splits, 2, 132), torch.nan)
    out = paged_decode_triton(q, paged.kv(), 0.2, workspace=workspace)
    assert_close(out, expected(q, paged, 0.2))


def test_a_workspace_is_bounded() -> None:
    q, k_cache = torch.empty(256, 32, 128).bfloat16(), torch.empty(1, 8, 16, 128).bfloat16()
    assert decode_workspace(q, k_cache, 256, 1 << 17).shape == (8192, 32, 132)
    assert decode_workspace(q[:1], k_cache, 1, 1 << 17).shape == (512, 32, 132)
    assert decode_workspace(q[:8], k_cache, 2, 1 << 17, window=512).shape == (8, 128, 132)


def test_rows_may_lie_apart() -> None:
    paged = cache([40, 90], 2, 64)
    qkv = torch.randn(2, 8, 64)
    q = qkv[:, :4]
    table = torch.nn.functional.pad(paged.block_tables, (0, 3))[:, :-3]
    out = paged_decode_triton(q, PagedKV(paged.k_cache, paged.v_cache, table, paged.seq_lens), 0.2)
    assert_close(out, expected(q, paged, 0.2))


def test_no_rows() -> None:
    paged = cache([40], 2, 64)
    out = paged_decode_triton(torch.randn(0, 4, 64), paged.kv(slice(0)), 0.2)
    assert out.shape == (0, 4, 64)
