from __future__ import annotations

import torch

from kernels.rope import rope


def test_is_a_rotation_of_pairs_half_a_head_apart() -> None:
    angles = torch.randn(5, 4)
    x = torch.randn(5, 3, 8)
    pairs = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones(5, 4), angles)[:, None]
    expected = torch.cat([pairs.real, pairs.imag], -1)
    torch.testing.assert_close(rope(x, angles.cos(), angles.sin()), expected)


def test_takes_a_slice_and_leaves_it_as_it_was() -> None:
    wide = torch.randn(2, 6, 4)
    before = wide.clone()
    angles = torch.randn(2, 2)
    out = rope(wide[:, 1:3], angles.cos(), angles.sin())
    assert torch.equal(wide, before)
    assert torch.equal(out, rope(wide[:, 1:3].contiguous(), angles.cos(), angles.sin()))
