from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.rms_norm import twice
from kernels.rope import norm_rope_triton, rope_triton, shifted_rope_triton
from tests.kernels.triton_cases import assert_close, poisoned

__all__ = ["poisoned"]


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The formula, in float64, by complex numbers."""
    x, cos, sin = x.double(), cos.double(), sin.double()
    turned = cos.shape[-1]
    turn = torch.complex(cos[..., : turned // 2], sin[..., : turned // 2])
    pairs = torch.complex(*x[..., :turned].chunk(2, -1)) * turn
    return torch.cat([pairs.real, pairs.imag, x[..., turned:]], -1)


def rotation(tokens: int, turned: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    angles = torch.randn(tokens, turned // 2) * 3
    both = torch.cat([angles, angles], -1)[:, None]
    return both.cos().to(dtype), both.sin().to(dtype)


CASES = [
    # tokens, heads, key heads, head_dim, turned, dtype
    (1, 1, 1, 64, 64, torch.float32),
    (3, 4, 1, 64, 64, torch.bfloat16),
    (2, 7, 1, 128, 128, torch.float16),
    (1, 32, 8, 128, 128, torch.bfloat16),
    (5, 16, 8, 128, 128, torch.float32),
    (2, 8, 1, 256, 256, torch.float32),
    (3, 3, 3, 80, 32, torch.float32),
    (2, 4, 4, 80, 80, torch.float16),
    (3, 3, 1, 96, 96, torch.float32),
    (2, 2, 1, 96, 48, torch.bfloat16),
    (2, 5, 5, 6, 2, torch.float32),
    (0, 4, 2, 64, 64, torch.float32),
]


@pytest.mark.parametrize(("tokens", "heads", "kv_heads", "head_dim", "turned", "dtype"), CASES)
def test_equals_the_formula_on_a_part_of_qkv(tokens, heads, kv_heads, head_dim, turned, dtype) -> None:
    qkv = torch.randn(tokens, heads + 2 * kv_heads, head_dim).to(dtype)
    before = qkv.clone()
    tables = rotation(tokens, turned, dtype)
    out = rope_triton(qkv[:, : heads + kv_heads], *tables)
    assert out.is_contiguous()
    assert_close(out, rotated(qkv[:, : heads + kv_heads], *tables))
    assert torch.equal(qkv, before)


@pytest.mark.parametrize(("tokens", "heads", "kv_heads", "head_dim", "turned", "dtype"), CASES)
def test_each_head_is_normalised_by_its_own_weight(tokens, heads, kv_heads, head_dim, turned, dtype) -> None:
    x = (torch.randn(tokens, heads + 2 * kv_heads, head_dim) * 5 + 1).to(dtype)[:, : heads + kv_heads]
    weight = (torch.randn(heads + kv_heads, head_dim) + 1).to(dtype)
    tables = rotation(tokens, turned, dtype)
    out = norm_rope_triton(x, twice(weight).to(dtype), 1e-3, *tables)
    wide = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-3).sqrt() * weight.double()
    assert_close(out, rotated(wide, *tables))


@pytest.mark.parametrize(("tokens", "heads", "kv_heads", "head_dim", "turned", "dtype"), CASES)
def test_a_bias_is_added_before_and_a_shift_taken_off_after(
    tokens, heads, kv_heads, head_dim, turned, dtype
) -> None:
    count = heads + kv_heads
    x = torch.randn(tokens, count + kv_heads, head_dim).to(dtype)[:, :count]
    bias, factors, shift = torch.randn(3, count, head_dim) * 3
    tables = rotation(tokens, turned, dtype)
    out = shifted_rope_triton(x, bias, factors, shift, *tables)
    wide = rotated(x.double() + bias.double(), *tables)
    assert_close(out, wide * factors.double() - shift.double())


def test_a_row_is_the_same_to_the_bit_whoever_shares_the_step() -> None:
    x, weight, tables = torch.randn(6, 3, 20), twice(torch.randn(3, 20)), rotation(6, 20, torch.float32)
    turned, normed = rope_triton(x, *tables), norm_rope_triton(x, weight, 1e-6, *tables)
    for rows in (slice(0, 1), slice(2, 5)):
        part = tuple(table[rows] for table in tables)
        assert torch.equal(rope_triton(x[rows], *part), turned[rows])
        assert torch.equal(norm_rope_triton(x[rows], weight, 1e-6, *part), normed[rows])
