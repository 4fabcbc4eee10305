from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from engine.layers.linear import Linear


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("invariant", [True, False])
@pytest.mark.parametrize(("rows", "fan_in", "fan_out"), [(1, 64, 96), (7, 33, 5), (300, 256, 40)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_plain_product(
    rows: int, fan_in: int, fan_out: int, bias: bool, dtype: torch.dtype, invariant: bool, native: bool
) -> None:
    weight = torch.randn(fan_out, fan_in).to(dtype)
    b = torch.randn(fan_out).to(dtype) if bias else None
    x = torch.randn(rows, fan_in).to(dtype)
    wanted = functional.linear(x.double(), weight.double(), None if b is None else b.double())
    found = Linear(weight, b, invariant=invariant, native=native)(x)
    assert found.dtype == dtype
    # Of float32, what sums of so many numbers of size 1 lose; of bfloat16, half a last place of the result beside that.
    rough = dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), wanted, rtol=2**-8 if rough else 0, atol=1e-4)


def test_takes_a_slice_of_a_wider_tensor() -> None:
    weight, wide = torch.randn(6, 10), torch.randn(4, 30)
    for native in (True, False):
        found = Linear(weight, native=native)(wide[:, 5:15])
        torch.testing.assert_close(found, wide[:, 5:15] @ weight.T, rtol=1e-5, atol=1e-5)
