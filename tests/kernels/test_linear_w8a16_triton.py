from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import split_k
from kernels.linear_w8a16 import (
    counters_w8,
    linear_w8a16,
    linear_w8a16_reference,
    linear_w8a16_triton,
)
from tests.kernels.triton_cases import assert_close, bfloat16_products, poisoned
from tests.sampling import diagonal

__all__ = ["bfloat16_products", "poisoned"]

pytestmark = pytest.mark.usefixtures("bfloat16_products")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Rows, inputs, outputs.
SHAPES = [(0, 128, 64), (1, 1, 1), (2, 384, 65), (7, 127, 130), (16, 513, 63), (17, 129, 64), (33, 200, 100)]


def codes_and_scale(outputs: int, inputs: int) -> tuple[Tensor, Tensor]:
    codes = torch.randint(-128, 128, (outputs, inputs), dtype=torch.int8)
    codes[:, 0], codes[:, -1] = -128, 127
    return codes, torch.rand(outputs) / inputs**0.5 / 64


@pytest.mark.parametrize(("rows", "inputs", "outputs", "dtype"), diagonal(SHAPES, DTYPES))
def test_equals_the_formula(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    codes, scale = codes_and_scale(outputs, inputs)
    x, bias = torch.randn(rows, inputs).to(dtype), torch.randn(outputs).to(dtype)
    product = x.double() @ codes.double().t() * scale.double()
    assert_close(linear_w8a16_triton(x, codes, scale), product)
    assert_close(linear_w8a16_triton(x, codes, scale, bias), product + bias.double())
    assert_close(linear_w8a16_reference(x, codes, scale, bias), product + bias.double())


@pytest.mark.parametrize("rows", [5, 21])
def test_a_row_depends_on_itself_alone(rows: int) -> None:
    codes, scale = codes_and_scale(100, 1000)
    x, others = torch.randn(rows, 1000), torch.randn(rows, 1000) * 100
    others[3] = x[3]
    together = linear_w8a16_triton(x, codes, scale, tile=16)[3]
    assert torch.equal(linear_w8a16_triton(others, codes, scale, tile=16)[3], together)
    assert torch.equal(linear_w8a16_triton(x[3:4], codes, scale, tile=16)[0], together)


def test_counters_are_zero_again_after_a_launch() -> None:
    codes, scale = codes_and_scale(64, 1024)
    assert split_k.split(1, 8, "sm_90").count == 4
    counters, x = counters_w8(codes), torch.randn(2, 1024)
    assert torch.equal(*(linear_w8a16_triton(x, codes, scale, None, counters) for _ in range(2)))
    assert not counters.any()


def test_rows_may_lie_apart() -> None:
    codes, scale = codes_and_scale(64, 96)
    half = torch.randn(4, 192)[:, 96:]
    assert torch.equal(
        linear_w8a16_triton(half, codes, scale), linear_w8a16_triton(half.clone(), codes, scale)
    )


def test_many_rows_are_multiplied_by_the_widened_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.linear_w8a16.on_triton", lambda x: True)
    codes, scale = codes_and_scale(64, 128)
    x, bias = torch.randn(65, 128), torch.randn(64)
    expected = x.double() @ codes.double().t() * scale.double() + bias.double()
    together = linear_w8a16(x, codes, scale, bias, invariant=True)
    assert_close(linear_w8a16(x, codes, scale, bias), expected)
    assert_close(together, expected)
    assert torch.equal(together[7], linear_w8a16(x[7:8], codes, scale, bias, invariant=True)[0])


@pytest.mark.parametrize(
    ("tiles", "steps"), [(1, 1), (1, 3), (64, 32), (448, 32), (64, 112), (16, 24), (5000, 8)]
)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "gfx942"])
def test_splits_cover_all_steps_and_none_is_empty(tiles: int, steps: int, arch: str) -> None:
    splits = split_k.split(tiles, steps, arch)
    assert (splits.count - 1) * splits.steps < steps <= splits.count * splits.steps
    assert splits.count <= split_k.MAX_SPLITS
