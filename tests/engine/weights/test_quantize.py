from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.weights.quantize import Int4Weight, join, regrouped, same_inputs, to_int4, to_int6, to_int8
from kernels.native.linear import scale_in_8_bits


@given(seed=st.integers(0, 1000), spread=st.sampled_from([1e-6, 0.02, 1.0, 1e4]))
def test_eight_bits_are_off_by_half_a_step_at_most(seed: int, spread: float) -> None:
    weight = torch.randn(6, 40, generator=torch.Generator().manual_seed(seed)) * spread
    kept = weight.clone()
    made = to_int8(weight)
    assert torch.equal(weight, kept)
    off = (made.codes * made.scale[:, None] - weight).abs().amax(1)
    assert bool((off <= made.scale * 0.501).all())


@given(seed=st.integers(0, 1000), size=st.sampled_from([32, 64]), shift=st.sampled_from([0.0, 5.0, -0.1]))
def test_four_bits_are_off_by_little_more_than_half_a_step(seed: int, size: int, shift: float) -> None:
    weight = torch.randn(6, 128, generator=torch.Generator().manual_seed(seed)) * 0.1 + shift
    made = to_int4(weight, size)
    assert made.size == size and int(made.codes.max()) <= 15
    off = (made.weight() - weight).abs().view(6, -1, size).amax(-1)
    # The end of the range suffers from offsets in sixteenths, or, far from zero, in bfloat16.
    assert bool((off <= made.scale * 0.6 + abs(shift) * 2**-7 + 1e-3).all())


@given(seed=st.integers(0, 1000), size=st.sampled_from([32, 64]))
def test_scales_take_8_bits_and_steps_grow_by_a_32nd_at_most(seed: int, size: int) -> None:
    weight = torch.randn(6, 128, generator=torch.Generator().manual_seed(seed)) * 0.1
    made, grouped = to_int4(weight, size), weight.view(6, -1, size)
    assert torch.equal(scale_in_8_bits(made.scale), made.scale)
    step = (grouped.amax(-1) - grouped.amin(-1)) / 15
    assert bool(((made.scale >= step) & (made.scale <= step * (1 + 2**-5))).all())
    sixteenths = made.offset * 16 / made.scale
    assert torch.equal(sixteenths, sixteenths.round())


@given(seed=st.integers(0, 1000), spread=st.sampled_from([1e-6, 0.02, 1.0, 1e4]))
def test_six_bits_are_off_by_half_a_step_at_most(seed: int, spread: float) -> None:
    weight = torch.randn(6, 96, generator=torch.Generator().manual_seed(seed)) * spread
    made = to_int6(weight)
    assert int(made.codes.max()) <= 63
    off = (made.weight() - weight).abs().view(6, 3, 32).amax(-1)
    assert bool((off <= made.scale * 0.501).all())
    assert bool((made.scale <= weight.view(6, 3, 32).abs().amax(-1) / 31.5 * (1 + 2**-5)).all())


def test_scales_far_below_the_largest_are_not_lost() -> None:
    """They take the least that 8 bits have; a row of zeros takes any."""
    scale = torch.tensor([[1.0, 1e-6, 0.02], [1e-20, 1e-20, 1e-20]])
    rounded = scale_in_8_bits(scale)
    assert bool((rounded >= scale).all())
    assert rounded[0, 1] == 2**-7 and torch.equal(scale_in_8_bits(rounded), rounded)


def test_a_weight_without_spread() -> None:
    for weight in (torch.zeros(4, 64), torch.full((4, 64), 2.0)):
        assert torch.equal(to_int4(weight, 32).weight(), weight)
        made = to_int8(weight)
        torch.testing.assert_close(made.codes * made.scale[:, None], weight)


def test_what_can_be_one_product() -> None:
    one, other = to_int4(torch.randn(4, 64), 32), to_int4(torch.randn(8, 64), 32)
    assert same_inputs([one, other])
    assert torch.equal(join([one, other]).weight(), torch.cat([one.weight(), other.weight()]))
    assert not same_inputs([one, to_int4(torch.randn(4, 64), 64)])
    order = torch.randperm(64)
    mixed = Int4Weight(other.codes, other.scale, other.offset, order)
    assert not same_inputs([one, mixed]) and not same_inputs([mixed, one])
    assert same_inputs([mixed, Int4Weight(one.codes, one.scale, one.offset, order.clone())])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_half_precision(dtype: torch.dtype) -> None:
    weight = torch.randn(8, 64).to(dtype)
    assert float((to_int4(weight, 32).weight() - weight.float()).norm() / weight.float().norm()) < 0.1


def test_smaller_groups_of_one_scale_are_the_same_weights() -> None:
    whole = to_int4(torch.randn(6, 96), 32)
    parts = regrouped(whole, 16)
    assert parts.size == 16
    assert torch.equal(parts.weight(), whole.weight())
