from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import split_k
from kernels.linear_w4a16 import (
    counters_w4,
    linear_w4a16,
    linear_w4a16_reference,
    linear_w4a16_triton,
    pack_w4,
    widen_w4,
    widen_w4_triton,
)
from tests.kernels.triton_cases import assert_close, bfloat16_products, poisoned
from tests.sampling import diagonal

__all__ = ["bfloat16_products", "poisoned"]

pytestmark = pytest.mark.usefixtures("bfloat16_products")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Rows, inputs, outputs, size of a group.
SHAPES = [
    (0, 128, 64, 128),
    (1, 128, 64, 128),
    (2, 384, 65, 128),
    (7, 320, 130, 64),
    (16, 544, 63, 32),
    (17, 96, 1, 32),
    (33, 192, 100, 96),
    (1, 1536, 64, 256),
]


def codes_and_scales(outputs: int, inputs: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Both extreme codes; scales of 8 bits, and offsets of both signs that are sixteenths of them."""
    codes = torch.randint(16, (outputs, inputs), dtype=torch.uint8)
    codes[:, 0], codes[:, -1] = 0, 15
    scale = ((torch.rand(outputs, inputs // size) + 0.1) / inputs**0.5 / 4).bfloat16().float()
    return codes, scale, torch.randint(-127, 128, scale.shape) / 16 * scale


def formula(codes: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    grouped = codes.double().view(*scale.shape, -1)
    return ((grouped - 8) * scale[..., None].double() + offset[..., None].double()).flatten(1)


@pytest.mark.parametrize(("rows", "inputs", "outputs", "size", "dtype"), diagonal(SHAPES, DTYPES))
def test_equals_the_formula(rows: int, inputs: int, outputs: int, size: int, dtype: torch.dtype) -> None:
    parts = codes_and_scales(outputs, inputs, size)
    weight = pack_w4(*parts)
    x, bias = torch.randn(rows, inputs).to(dtype), torch.randn(outputs).to(dtype)
    product = x.double() @ formula(*parts).t()
    assert_close(linear_w4a16_triton(x, weight), product)
    assert_close(linear_w4a16_triton(x, weight, bias), product + bias.double())
    assert_close(linear_w4a16_reference(x, weight, bias), product + bias.double())


@pytest.mark.parametrize("dtype", DTYPES)
def test_codes_are_exact_at_both_ends(dtype: torch.dtype) -> None:
    """All codes 0, then all 15, times ones: what is taken out again with the offset must be just what was put in."""
    for code in (0, 15):
        scale, offset = torch.full((64, 1), 0.5), torch.full((64, 1), 3.5)
        weight = pack_w4(torch.full((64, 128), code, dtype=torch.uint8), scale, offset)
        product = linear_w4a16_triton(torch.ones(1, 128, dtype=dtype), weight)
        assert torch.equal(product.float(), torch.full((1, 64), 128 * ((code - 8) * 0.5 + 3.5)))


@pytest.mark.parametrize("size", [32, 64, 128])
def test_widened_it_is_the_formula(size: int) -> None:
    parts = codes_and_scales(70, 384, size)
    weight = pack_w4(*parts)
    expected = formula(*parts)
    assert_close(widen_w4(weight, torch.float32), expected)
    assert torch.equal(widen_w4_triton(weight, torch.float32), widen_w4(weight, torch.float32))


def test_scales_keep_the_checkpoints_dtype() -> None:
    codes, _, _ = codes_and_scales(64, 256, 128)
    scale = (torch.rand(64, 2) / 16).half().float()
    zero = torch.randint(16, (64, 2)).float()
    weight = pack_w4(codes, scale, (8 - zero) * scale)
    assert weight.dtype == torch.float16
    grouped = codes.view(64, 2, -1).double()
    wide = ((grouped - zero[..., None]) * scale[..., None].double()).flatten(1)
    assert_close(widen_w4(weight, torch.float32), wide)
    assert torch.equal(widen_w4_triton(weight, torch.float32), widen_w4(weight, torch.float32))
    x = torch.randn(3, 256)
    assert_close(linear_w4a16_triton(x, weight), x.double() @ wide.t())


def test_groups_of_one_number() -> None:
    """No scale, or next to none, beside the offset."""
    for least in (0.0, 1e-20):
        weight = pack_w4(
            torch.full((64, 128), 8, dtype=torch.uint8), torch.full((64, 1), least), torch.full((64, 1), 0.75)
        )
        x = torch.randn(1, 128)
        expected = (0.75 * x.double().sum(1, keepdim=True)).expand(1, 64)
        torch.testing.assert_close(linear_w4a16_triton(x, weight).double(), expected, rtol=8e-3, atol=1e-5)


@pytest.mark.parametrize("rows", [5, 21])
def test_a_row_depends_on_itself_alone(rows: int) -> None:
    weight = pack_w4(*codes_and_scales(100, 1024, 128))
    x = torch.randn(rows, 1024)
    together = linear_w4a16_triton(x, weight, tile=16)
    others = torch.randn(rows, 1024) * 100
    others[3] = x[3]
    assert torch.equal(linear_w4a16_triton(others, weight, tile=16)[3], together[3])
    assert torch.equal(linear_w4a16_triton(x[3:4], weight, tile=16)[0], together[3])


def test_counters_are_zero_again_after_a_launch() -> None:
    weight = pack_w4(*codes_and_scales(64, 1024, 128))
    assert split_k.split(1, 8, "sm_90").count == 4
    counters = counters_w4(weight)
    x = torch.randn(2, 1024)
    products = [linear_w4a16_triton(x, weight, None, counters) for _ in range(2)]
    assert torch.equal(*products)
    assert not counters.any()


def test_rows_may_lie_apart() -> None:
    weight = pack_w4(*codes_and_scales(64, 128, 32))
    wide = torch.randn(4, 256)
    assert torch.equal(
        linear_w4a16_triton(wide[:, 128:], weight), linear_w4a16_triton(wide[:, 128:].clone(), weight)
    )


def test_many_rows_are_multiplied_by_the_widened_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.linear_w4a16.on_triton", lambda x: True)
    parts = codes_and_scales(64, 128, 64)
    weight, x, bias = pack_w4(*parts), torch.randn(65, 128), torch.randn(64)
    expected = x.double() @ formula(*parts).t() + bias.double()
    assert_close(linear_w4a16(x, weight, bias), expected)
    assert_close(linear_w4a16(x, weight, bias, invariant=True), expected)
    assert torch.equal(
        linear_w4a16(x, weight, bias, invariant=True)[7],
        linear_w4a16(x[7:8], weight, bias, invariant=True)[0],
    )


def test_groups_that_are_no_multiple_of_32_are_refused() -> None:
    with pytest.raises(ValueError, match="Groups of 48"):
        pack_w4(*codes_and_scales(64, 96, 48))
