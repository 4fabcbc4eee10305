from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.int4_kv import LEVELS, group_size, int4_block_bytes, pack, unpack
from kernels.paged_decode import paged_decode_reference
from kernels.paged_kv import PagedKV
from kernels.paged_prefill import paged_prefill_reference
from kernels.store_int4_kv import store_int4_kv_reference
from tests.kernels.paged import dense


def cache(blocks: int, heads: int, block_size: int, head_dim: int, scales: float = torch.nan) -> list[Tensor]:
    """Full of what nobody stores. What is not finite is nowhere in a cache that an engine reads."""
    packed = torch.full((blocks, heads, block_size, head_dim // 2), 0x5A, dtype=torch.uint8)
    groups = head_dim // group_size(head_dim)
    return [
        packed,
        packed.clone(),
        torch.full((blocks, heads, 2, head_dim), scales, dtype=torch.float16),
        torch.full((blocks, heads, block_size, 2 * groups), scales, dtype=torch.float16),
    ]


def store(k: Tensor, v: Tensor, to: list[Tensor], slots: Tensor) -> None:
    keys, values, key_scales, value_scales = to
    store_int4_kv_reference(k, v, keys, values, slots, key_scales, value_scales)


def read(stored: list[Tensor], blocks: Tensor, lens: list[int]) -> PagedKV:
    return PagedKV(stored[0], stored[1], blocks, torch.tensor(lens), stored[2], stored[3])


def test_bytes_have_two_channels_each() -> None:
    codes = torch.randint(0, 16, (3, 2, 5, 24), dtype=torch.uint8)
    assert pack(codes).shape == (3, 2, 5, 12)
    assert torch.equal(unpack(pack(codes)), codes)


@pytest.mark.parametrize("head_dim", [64, 80, 192, 6])
def test_a_block_takes_what_is_said(head_dim: int) -> None:
    stored = cache(3, 2, 16, head_dim)
    assert sum(tensor.nbytes for tensor in stored) == 3 * 2 * int4_block_bytes(16, head_dim)


@pytest.mark.parametrize("head_dim", [64, 80])
def test_a_whole_block_errs_by_half_a_step_of_each_channel(head_dim: int) -> None:
    """Though one channel is a thousand times as large as the others, and far from zero."""
    generator = torch.Generator().manual_seed(1)
    k, v = torch.randn(2, 16, 3, head_dim, generator=generator)
    k[:, :, 5] = 100 + 100 * k[:, :, 5]
    stored = cache(2, 3, 16, head_dim)
    store(k, v, stored, torch.arange(16, 32))
    scale, low = stored[2][1].float().unbind(1)
    found = unpack(stored[0][1]).float() * scale[:, None] + low[:, None]
    error = (found.transpose(0, 1) - k).abs()
    width = k.amax(0) - k.amin(0)
    assert (error <= width / LEVELS / 2 * 1.01 + k.abs().amax(0) * 2**-10).all()
    assert torch.isnan(stored[2][0]).all()
    rows = unpack(stored[1][1]).float().unflatten(-1, (-1, group_size(head_dim)))
    scale, low = stored[3][1].float().chunk(2, -1)
    values = (rows * scale[..., None] + low[..., None]).flatten(-2).transpose(0, 1)
    assert ((values - v).abs() <= (v.amax(-1) - v.amin(-1))[..., None] / LEVELS / 2 * 1.01 + 2**-9).all()


def test_a_block_that_grows_by_tokens_is_near_one_that_was_written_at_once() -> None:
    generator = torch.Generator().manual_seed(2)
    k, v = torch.randn(2, 32, 2, 64, generator=generator)
    whole, grown = cache(2, 2, 16, 64), cache(2, 2, 16, 64)
    store(k, v, whole, torch.arange(32))
    for token in range(32):
        store(k[token : token + 1], v[token : token + 1], grown, torch.tensor([token]))
    assert torch.equal(whole[1], grown[1])
    assert torch.equal(whole[3], grown[3])
    for stored, most in ((whole, 0.55), (grown, 3.0)):
        scale, low = stored[2].float().split(1, 2)
        found = (unpack(stored[0]).float() * scale + low).transpose(1, 2).flatten(0, 1)
        steps = scale.transpose(1, 2).repeat_interleave(16, 1).flatten(0, 1)
        assert ((found - k).abs() / steps).max() < most


def test_what_lies_in_the_range_rounds_nothing_anew() -> None:
    k = torch.linspace(-1, 1, 8)[:, None, None].expand(8, 1, 64)
    stored = cache(1, 1, 16, 64)
    store(k, k, stored, torch.arange(8))
    before = [tensor.clone() for tensor in stored]
    store(k[3:4] * 0.5, k[3:4], stored, torch.tensor([8]))
    assert torch.equal(stored[2], before[2])
    assert torch.equal(stored[0][0, 0, :8], before[0][0, 0, :8])


def test_a_block_that_begins_anew_knows_nothing_of_its_last_owner() -> None:
    """Nor does one where numbers are not finite."""
    k = torch.randn(1, 1, 64)
    stored = cache(1, 1, 16, 64)
    store(
        torch.tensor([torch.nan, torch.inf, -torch.inf, 1e9]).repeat(16)[None, None],
        k,
        stored,
        torch.tensor([0]),
    )
    assert torch.isfinite(stored[2][0]).all()
    store(k, k, stored, torch.tensor([0]))
    assert torch.equal(stored[2][0, :, 1], k[0].half())
    # What float16 rounds off.
    assert (stored[2][0, :, 0] < 1e-3).all()


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("step", [150, 1, 7])
def test_attention_is_near_that_over_what_was_stored(step: int, window: int | None) -> None:
    generator = torch.Generator().manual_seed(3)
    length, blocks = 150, 12
    k, v, q = (torch.randn(length, heads, 64, generator=generator) for heads in (2, 2, 4))
    k[:, :, 7] += 30  # as a bias makes it
    q[:, :, 7] /= 30
    stored = cache(blocks + 1, 2, 16, 64, scales=-6e4)
    table = torch.randperm(blocks, generator=generator)[None]
    positions = torch.arange(length)
    slots = table[0, positions // 16] * 16 + positions % 16
    for first in range(0, length, step):
        part = slice(first, first + step)
        store(k[part], v[part], stored, slots[part])
    kv = read(stored, table, [length])
    expected = dense(q, k, v, 0.125, window)
    prefill = paged_prefill_reference(q, kv, torch.tensor([0, length]), 0.125, window)
    assert (prefill - expected)[30:].abs().max() < 0.2
    assert (prefill - expected).abs().mean() < 0.04
    decode = paged_decode_reference(q[-1:], kv, 0.125, window)
    torch.testing.assert_close(decode[0], prefill[-1])
