from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.rms_norm import twice
from kernels.rope import norm_rope, norm_rope_reference, rope, rope_reference


def tables(angles: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.cat([angles, angles], -1)[:, None]
    return both.cos(), both.sin()


@pytest.mark.parametrize("turned", [8, 6, 2])
def test_is_a_rotation_of_pairs_half_of_what_turns_apart(turned: int) -> None:
    angles = torch.randn(5, turned // 2)
    x = torch.randn(5, 3, 8)
    pairs = (
        torch.complex(*x[..., :turned].chunk(2, -1)) * torch.polar(torch.ones_like(angles), angles)[:, None]
    )
    expected = torch.cat([pairs.real, pairs.imag, x[..., turned:]], -1)
    torch.testing.assert_close(rope(x, *tables(angles)), expected)
    torch.testing.assert_close(rope_reference(x, *tables(angles)), expected)


@pytest.mark.parametrize("turned", [12, 8])
def test_heads_are_normalised_before_they_turn(turned: int) -> None:
    x, weight = torch.randn(4, 5, 12), torch.randn(5, 12)
    rotation = tables(torch.randn(4, turned // 2))
    scaled = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * weight.double()
    expected = rope_reference(scaled, *(table.double() for table in rotation))
    for function in (norm_rope, norm_rope_reference):
        out = function(x, twice(weight), 1e-3, *rotation)
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def test_takes_a_slice_and_leaves_it_as_it_was() -> None:
    wide = torch.randn(2, 6, 4)
    before = wide.clone()
    rotation, weight = tables(torch.randn(2, 2)), twice(torch.randn(2, 4))
    part, whole = wide[:, 1:3], wide[:, 1:3].contiguous()
    for out, expected in (
        (rope(part, *rotation), rope(whole, *rotation)),
        (norm_rope(part, weight, 1e-6, *rotation), norm_rope(whole, weight, 1e-6, *rotation)),
    ):
        assert out.is_contiguous()
        assert torch.equal(out, expected)
    assert torch.equal(wide, before)


def test_a_row_is_the_same_to_the_bit_whoever_shares_the_step() -> None:
    x, weight, rotation = torch.randn(40, 3, 20), twice(torch.randn(3, 20)), tables(torch.randn(40, 10))
    turned, normed = rope(x, *rotation), norm_rope(x, weight, 1e-6, *rotation)
    for rows in (slice(0, 1), slice(7, 10), slice(3, 36)):
        part = tuple(table[rows] for table in rotation)
        assert torch.equal(rope(x[rows], *part), turned[rows])
        assert torch.equal(norm_rope(x[rows], weight, 1e-6, *part), normed[rows])


def test_bfloat16_stays_bfloat16() -> None:
    x, weight = torch.randn(3, 2, 16).bfloat16(), twice(torch.randn(2, 16)).bfloat16()
    rotation = tuple(table.bfloat16() for table in tables(torch.randn(3, 8)))
    for function in (norm_rope, norm_rope_reference):
        out = function(x, weight, 1e-6, *rotation)
        assert out.dtype == torch.bfloat16
        wide = norm_rope_reference(x.float(), weight.float(), 1e-6, *(t.float() for t in rotation))
        torch.testing.assert_close(out.float(), wide, rtol=0.05, atol=0.05)
