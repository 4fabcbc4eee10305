from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels.rms_norm import add_rms_norm, rms_norm, rms_norm_reference, twice


@pytest.mark.parametrize("size", [1, 7, 64, 257])
@pytest.mark.parametrize("function", [rms_norm, rms_norm_reference])
def test_equals_the_formula(size: int, function: Callable[[Tensor, Tensor, float], Tensor]) -> None:
    x, weight = torch.randn(3, size) + 2, torch.randn(size)
    expected = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(function(x, twice(weight), 1e-5).double(), expected, rtol=1e-5, atol=1e-6)


def test_the_residual_is_the_sum_before_the_norm() -> None:
    x, residual, weight = torch.randn(2, 16), torch.randn(2, 16), twice(torch.randn(16))
    out, total = add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    assert torch.equal(out, rms_norm(x + residual, weight, 1e-6))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_mean_of_large_half_precision_numbers_does_not_overflow(dtype: torch.dtype) -> None:
    out = rms_norm(torch.full((1, 32), 300.0, dtype=dtype), twice(torch.ones(32, dtype=dtype)), 1e-5)
    assert out.dtype == dtype
    assert torch.equal(out, torch.ones(1, 32, dtype=dtype))


@pytest.mark.parametrize("size", [20, 256, 1023])
def test_a_row_is_the_same_to_the_bit_whoever_shares_the_step(size: int) -> None:
    x, weight = torch.randn(40, size), twice(torch.randn(size))
    whole = rms_norm(x, weight, 1e-6)
    for rows in (slice(0, 1), slice(7, 10), slice(3, 36)):
        assert torch.equal(rms_norm(x[rows], weight, 1e-6), whole[rows])
