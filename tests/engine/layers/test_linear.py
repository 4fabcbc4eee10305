from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional

from engine.layers.linear import Linear


@pytest.mark.parametrize(("rows", "fan_in", "fan_out"), [(1, 64, 96), (7, 33, 5), (300, 256, 40)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_the_plain_product(
    rows: int, fan_in: int, fan_out: int, bias: bool, dtype: torch.dtype
) -> None:
    weight = torch.randn(fan_out, fan_in).to(dtype)
    b = torch.randn(fan_out).to(dtype) if bias else None
    x = torch.randn(rows, fan_in).to(dtype)
    torch.testing.assert_close(Linear(weight, b)(x), functional.linear(x, weight, b), rtol=2e-2, atol=1e-4)


def test_takes_a_slice_of_a_wider_tensor() -> None:
    weight, wide = torch.randn(6, 10), torch.randn(4, 30)
    torch.testing.assert_close(Linear(weight)(wide[:, 5:15]), wide[:, 5:15] @ weight.T)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_a_row_is_the_same_to_the_bit_whoever_shares_the_product() -> None:
    if not torch.backends.mkl.is_available():
        pytest.skip("packed weights need MKL")
    x = torch.randn(200, 256)
    for fan_out in (64, 190, 192, 704):
        linear = Linear(torch.randn(fan_out, 256))
        whole = linear(x)
        for rows in (*range(1, 18), 64, 199):
            assert torch.equal(linear(x[:rows]), whole[:rows])
        assert torch.equal(linear(x[50:53]), whole[50:53])
