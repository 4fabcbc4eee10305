from __future__ import annotations

import pytest
import torch

from kernels.rms_norm import add_rms_norm_triton, rms_norm_triton, twice
from tests.kernels.triton_cases import assert_close, poisoned

__all__ = ["poisoned"]

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [1, 7, 64, 80, 257, 1024])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_equals_the_formula(rows: int, hidden: int, dtype: torch.dtype) -> None:
    x, weight = (torch.randn(rows, hidden) + 2).to(dtype), torch.randn(hidden)
    wide = x.double()
    expected = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert_close(rms_norm_triton(x, twice(weight), 1e-5), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_residual_is_the_sum_before_the_norm(dtype: torch.dtype) -> None:
    x, residual, weight = torch.randn(3, 96).to(dtype), torch.randn(3, 96).to(dtype), twice(torch.randn(96))
    out, total = add_rms_norm_triton(x, residual, weight, 1e-6)
    assert_close(total, x.double() + residual.double())
    assert torch.equal(out, rms_norm_triton(total, weight, 1e-6))


def test_rows_may_lie_apart() -> None:
    wide, weight = torch.randn(4, 128), twice(torch.randn(64))
    assert torch.equal(
        rms_norm_triton(wide[:, :64], weight, 1e-6), rms_norm_triton(wide[:, :64].clone(), weight, 1e-6)
    )
