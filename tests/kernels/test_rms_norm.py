from __future__ import annotations

import pytest
import torch

from kernels.rms_norm import add_rms_norm, rms_norm


@pytest.mark.parametrize("size", [1, 7, 64, 257])
def test_equals_the_formula(size: int) -> None:
    x, weight = torch.randn(3, size), torch.randn(size)
    expected = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(rms_norm(x, weight, 1e-5).double(), expected, rtol=1e-5, atol=1e-6)


def test_the_residual_is_the_sum_before_the_norm() -> None:
    x, residual, weight = torch.randn(2, 16), torch.randn(2, 16), torch.randn(16)
    out, total = add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    assert torch.equal(out, rms_norm(x + residual, weight, 1e-6))


def test_the_mean_of_large_half_precision_numbers_does_not_overflow() -> None:
    x = torch.full((1, 32), 300.0, dtype=torch.float16)
    assert torch.allclose(rms_norm(x, torch.ones(32, dtype=torch.float16), 1e-5), torch.ones(1).half())
