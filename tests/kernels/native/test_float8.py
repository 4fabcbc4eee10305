from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.weights.quantize import Float8Weight
from kernels.native import float8
from kernels.native.float8 import PackedFloat8

pytestmark = pytest.mark.skipif(not float8.available(), reason="no compiler")


def made(out: int, inputs: int, group: int) -> Float8Weight:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randn(out, inputs, generator=generator).mul_(20).to(torch.float8_e4m3fn)
    scale = torch.rand(out, -(-inputs // group), generator=generator) + 0.1
    return Float8Weight(codes, scale, group)


def product(weight: Float8Weight, x: Tensor, bias: Tensor | None = None) -> Tensor:
    return PackedFloat8(weight.codes, weight.scale, weight.group, bias)(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("out", "inputs", "group"), [(1, 1, 1), (40, 96, 96), (70, 300, 128), (129, 64, 32)])
def test_the_product_with_its_own_weight(out: int, inputs: int, group: int, dtype: torch.dtype) -> None:
    weight, bias = made(out, inputs, group), torch.randn(out)
    for rows in (0, 1, 5, 13, 100):
        x = torch.randn(rows, inputs).to(dtype)
        found = product(weight, x, bias)
        wanted = torch.nn.functional.linear(x.float(), weight.weight(), bias)
        assert found.dtype == dtype and found.shape == (rows, out)
        torch.testing.assert_close(
            found.float(), wanted, rtol=torch.finfo(dtype).eps, atol=1e-4 * weight.weight().abs().max().item()
        )


def test_every_code_is_its_number() -> None:
    codes = torch.arange(256).to(torch.uint8)
    codes = codes[codes & 127 != 127].view(torch.float8_e4m3fn)
    weight = Float8Weight(codes[:, None], torch.ones(len(codes), 1), 1)
    assert torch.equal(product(weight, torch.ones(1, 1))[0], codes.float())


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_is_the_same_to_the_bit_among_any_rows(threads: int) -> None:
    weight, x = made(200, 1000, 128), torch.randn(130, 1000)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = product(weight, x)
        for first, last in ((0, 1), (3, 9), (90, 130)):
            assert torch.equal(product(weight, x[first:last]), whole[first:last])
    finally:
        torch.set_num_threads(before)


def test_rows_that_lie_apart_or_across() -> None:
    weight, x = made(40, 64, 64), torch.randn(5, 64)
    for other in (torch.randn(5, 80).copy_(torch.cat([x, x[:, :16]], 1))[:, :64], x.t().contiguous().t()):
        assert torch.equal(product(weight, other), product(weight, x))


@pytest.mark.parametrize(("out", "inputs", "group"), [(40, 96, 96), (70, 300, 128)])
def test_many_rows_in_bfloat16(out: int, inputs: int, group: int) -> None:
    weight, bias, x = made(out, inputs, group), torch.randn(out), torch.randn(33, inputs).bfloat16()
    packed = PackedFloat8(weight.codes, weight.scale, group, bias)
    wanted = torch.nn.functional.linear(x, weight.weight().bfloat16(), bias.bfloat16()).float()
    error = (packed.product_by_library(x).float() - wanted).norm() / wanted.norm()
    assert float(error) < 0.01
