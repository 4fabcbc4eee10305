from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import launch
from kernels.linear_fp8 import linear_fp8, quantize_rows_reference, quantize_rows_triton
from kernels.linear_w8a16 import linear_w8a16_triton
from tests.kernels.triton_cases import assert_close, bfloat16_products, poisoned
from tests.sampling import diagonal

__all__ = ["bfloat16_products", "poisoned"]

pytestmark = pytest.mark.usefixtures("bfloat16_products")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SHAPES = [(0, 128, 64), (1, 16, 1), (2, 384, 65), (16, 513, 63), (33, 200, 100)]


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.linear_fp8.on_triton", lambda x: True)


def codes_and_scale(outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    """All numbers of e4m3 come up, the smallest and the largest too, but NaN."""
    bits = torch.randint(256, (outputs, inputs), dtype=torch.uint8)
    bits[bits & 127 == 127] = 1
    return bits.view(torch.float8_e4m3fn), torch.rand(outputs) / inputs**0.5 / 64


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs", "dtype", "arch"), diagonal(SHAPES, DTYPES, ["sm_80", "sm_90"])
)
def test_equals_the_formula(
    rows: int, inputs: int, outputs: int, dtype: torch.dtype, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "arch", lambda device: arch)
    codes, scale = codes_and_scale(outputs, inputs)
    x, bias = torch.randn(rows, inputs).to(dtype), torch.randn(outputs).to(dtype)
    product = x.double() @ codes.double().t() * scale.double()
    assert_close(linear_w8a16_triton(x, codes, scale), product)
    assert_close(linear_fp8(x, codes, scale, bias), product + bias.double())


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_all_codes_are_widened_to_themselves(
    dtype: torch.dtype, arch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "arch", lambda device: arch)
    bits = torch.arange(256, dtype=torch.uint8)
    codes = bits[bits & 127 != 127].view(torch.float8_e4m3fn)[:, None]
    product = linear_w8a16_triton(torch.ones(1, 1, dtype=dtype), codes, torch.ones(len(codes)))
    assert torch.equal(product[0].float(), codes[:, 0].float())


@pytest.mark.parametrize("columns", [1, 17, 256, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_rounded_to_e4m3(columns: int, dtype: torch.dtype) -> None:
    x = torch.randn(3, 2 * columns).to(dtype)[:, columns:]
    x[1] = 0
    codes, scale = quantize_rows_triton(x)
    expected, step = quantize_rows_reference(x)
    assert_close(scale, step)
    assert not codes[1].float().any()
    # The interpreter loses what is carried into the exponent, so all that may round up to a power of two is left out.
    kept = expected.float().frexp().mantissa.abs() > 0.5
    # Ties go either way.
    torch.testing.assert_close(codes.float()[kept], expected.float()[kept], rtol=0.125, atol=2.0**-9)


def test_many_rows_take_the_chips_own_product(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def product(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, **options: Any) -> Tensor:
        taken.append((a.dtype, b.dtype, a_scale.shape, b_scale.shape))
        return ((a.float() * a_scale) @ (b.float() * b_scale)).to(options["out_dtype"])

    monkeypatch.setattr(torch, "_scaled_mm", product)
    codes, scale = codes_and_scale(64, 128)
    x, bias = torch.randn(65, 128).bfloat16(), torch.randn(64).bfloat16()
    expected = x.double() @ codes.double().t() * scale.double() + bias.double()
    error = (linear_fp8(x, codes, scale, bias).double() - expected).norm() / expected.norm()
    assert error < 0.1
    assert taken == [(torch.float8_e4m3fn, torch.float8_e4m3fn, (65, 1), (1, 64))]


@pytest.mark.parametrize(("arch", "outputs"), [("sm_80", 64), ("gfx942", 64), ("sm_90", 63)])
def test_elsewhere_many_rows_are_multiplied_by_the_widened_codes(
    arch: str, outputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "arch", lambda device: arch)
    codes, scale = codes_and_scale(outputs, 128)
    x = torch.randn(65, 128)
    assert_close(linear_fp8(x, codes, scale), x.double() @ codes.double().t() * scale.double())


def test_invariant_a_row_depends_on_itself_alone() -> None:
    codes, scale = codes_and_scale(32, 256)
    x = torch.randn(40, 256)
    together = linear_fp8(x, codes, scale, invariant=True)
    assert torch.equal(linear_fp8(x[5:6], codes, scale, invariant=True)[0], together[5])
