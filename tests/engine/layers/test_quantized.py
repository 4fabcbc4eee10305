from __future__ import annotations

import logging
from functools import cache

import pytest
import torch

from engine.layers import quantized
from engine.layers.native import Int6Linear
from engine.layers.quantized import ConcatenatedLinear, Int4Linear, Int8Linear, _layout
from engine.weights.quantize import ChannelWeight, Int4Weight, to_int4, to_int6, to_int8
from kernels.native.linear import available

SHAPES = [(1, 32), (5, 96), (80, 64), (300, 256)]
DTYPES = [torch.float32, torch.bfloat16]
NATIVE = [
    False,
    pytest.param(True, marks=pytest.mark.skipif(not available(), reason="no AVX-512 VNNI or no compiler")),
]
needs_native = pytest.mark.skipif(not available(), reason="no AVX-512 VNNI or no compiler")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm())


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize(("fan_out", "fan_in"), [*SHAPES, (7, 33)])
@pytest.mark.parametrize("rows", [1, 3, 200])
@pytest.mark.parametrize("dtype", DTYPES)
def test_eight_bits_equal_the_product_with_their_own_weight(
    fan_out: int, fan_in: int, rows: int, dtype: torch.dtype, native: bool
) -> None:
    weight = to_int8(torch.randn(fan_out, fan_in))
    x, bias = torch.randn(rows, fan_in).to(dtype), torch.randn(fan_out).to(dtype)
    wanted = x.double() @ (weight.codes.double() * weight.scale.double()[:, None]).T + bias.double()
    found = Int8Linear(weight, bias, native=native)(x)
    assert found.dtype == dtype
    assert error(found, wanted) < (1e-4 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_eight_bits_is_the_same_to_the_bit_whoever_shares_the_product(
    dtype: torch.dtype, native: bool
) -> None:
    linear = Int8Linear(to_int8(torch.randn(200, 256)), invariant=True, native=native)
    x = torch.randn(150, 256).to(dtype)
    whole = linear(x)
    for rows in (*range(1, 18), 63, 64, 65, 149):
        assert torch.equal(linear(x[:rows]), whole[:rows])
    assert torch.equal(linear(x[70:75]), whole[70:75])


@pytest.mark.parametrize("native", NATIVE)
def test_rows_of_float32_are_the_same_even_where_nobody_asks(native: bool) -> None:
    weight = to_int8(torch.randn(96, 64))
    x = torch.randn(9, 64)
    assert torch.equal(
        Int8Linear(weight, native=native)(x[:1]), Int8Linear(weight, invariant=True, native=native)(x)[:1]
    )


@pytest.mark.parametrize("native", NATIVE)
def test_eight_bits_keep_a_large_activation_beside_small_ones(native: bool) -> None:
    x = torch.randn(4, 256)
    x[:, 7] = 300
    weight = to_int8(torch.randn(64, 256))
    weight.codes[:, 7] = 0
    wanted = x.double() @ (weight.codes.double() * weight.scale.double()[:, None]).T
    assert error(Int8Linear(weight, native=native)(x), wanted) < 5e-3


@pytest.mark.parametrize("native", NATIVE)
def test_the_largest_activations_of_either_sign_fit(native: bool) -> None:
    x = torch.tensor([[1.0, -1.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [-3e4, 3e4, 1.0, 0.0]])
    linear = Int8Linear(
        ChannelWeight(torch.tensor([[127, -127, 1, 5]], dtype=torch.int8), torch.ones(1)), native=native
    )
    torch.testing.assert_close(linear(x), torch.tensor([[254.5], [0.0], [-7619999.0]]), rtol=1e-4, atol=0)


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize(("fan_out", "fan_in"), SHAPES)
@pytest.mark.parametrize("rows", [1, 7, 100])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("invariant", [False, True])
def test_four_bits_equal_the_product_with_their_own_weight(
    fan_out: int, fan_in: int, rows: int, dtype: torch.dtype, invariant: bool, native: bool
) -> None:
    weight = to_int4(torch.randn(fan_out, fan_in), 32)
    x, bias = torch.randn(rows, fan_in).to(dtype), torch.randn(fan_out).to(dtype)
    found = Int4Linear(weight, bias, invariant=invariant, native=native)(x)
    assert found.dtype == dtype
    assert error(found, x.double() @ weight.weight().double().T + bias.double()) < 6e-3


@pytest.mark.parametrize("native", NATIVE)
def test_more_outputs_than_are_widened_at_a_time(native: bool) -> None:
    weight = to_int4(torch.randn(2100, 64), 64)
    x = torch.randn(100, 64).bfloat16()
    assert error(Int4Linear(weight, native=native)(x), x.double() @ weight.weight().double().T) < 6e-3


@pytest.mark.parametrize("native", NATIVE)
def test_a_row_of_four_bits_is_the_same_to_the_bit_among_any_rows_where_asked(native: bool) -> None:
    weight = to_int4(torch.randn(100, 128), 64)
    x = torch.randn(90, 128)
    few, whole = Int4Linear(weight, native=native), Int4Linear(weight, invariant=True, native=native)(x)
    for rows in (*range(1, 18), 47):
        assert torch.equal(few(x[:rows]), whole[:rows])
    for rows in (48, 89):
        assert torch.equal(Int4Linear(weight, invariant=True, native=native)(x[:rows]), whole[:rows])


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("size", [32, 64, 96, 128, 192, 384])
def test_groups_of_any_multiple_of_32(size: int, native: bool) -> None:
    weight = to_int4(torch.randn(16, 384), size)
    x = torch.randn(5, 384)
    assert error(Int4Linear(weight, native=native)(x), x.double() @ weight.weight().double().T) < 6e-3


@pytest.mark.parametrize("native", NATIVE)
def test_inputs_out_of_order(native: bool) -> None:
    order = torch.randperm(64)
    plain = to_int4(torch.randn(16, 64), 32)
    weight = Int4Weight(plain.codes, plain.scale, plain.offset, order)
    x = torch.randn(3, 64)
    assert torch.equal(weight.weight()[:, order], plain.weight())
    assert error(Int4Linear(weight, native=native)(x), x.double() @ weight.weight().double().T) < 6e-3


def test_the_packing_of_this_processor_is_known() -> None:
    """Without it prompts take several times as long: worth a look on a new kind of processor."""
    assert _layout() is not None


def test_weights_take_the_bits_they_say() -> None:
    weight = torch.randn(256, 512)
    assert Int8Linear(to_int8(weight)).nbytes / weight.numel() < 1.02
    # Four bits, and two bfloat16 for every 32 weights.
    assert Int4Linear(to_int4(weight, 32), invariant=True, native=False).nbytes / weight.numel() == 0.625


@needs_native
def test_weights_take_fewer_bits_where_the_product_knows_how() -> None:
    weight = torch.randn(256, 512)
    # Beside scales of 8 bits there is a float32 an output.
    assert Int8Linear(to_int8(weight)).nbytes / weight.numel() == 1 + 4 / 512
    assert Int6Linear(to_int6(weight)).nbytes / weight.numel() == 0.75 + 1 / 32 + 4 / 512
    assert Int4Linear(to_int4(weight, 32)).nbytes / weight.numel() == 0.5 + 2 / 32 + 4 / 512
    # As files have them, scales take 16.
    rough = Int4Weight(torch.full((256, 512), 3).byte(), torch.rand(256, 16), torch.rand(256, 16))
    assert Int4Linear(rough).nbytes / weight.numel() == 0.625


def test_where_integers_overflow_they_are_multiplied_as_floats(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def saturating(x: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """As oneDNN does without VNNI: bytes without a sign, two products in 16 bits."""
        pairs = (x.int() + 128)[..., None] * codes.int()
        pairs = pairs.view(len(x), -1, 2, codes.shape[1]).sum(2).clamp(-(2**15), 2**15 - 1)
        return pairs.sum(1, dtype=torch.int32) - 128 * codes.int().sum(0, dtype=torch.int32)

    monkeypatch.setattr(torch, "_int_mm", saturating)
    monkeypatch.setattr(quantized, "sums_are_exact", cache(quantized.sums_are_exact.__wrapped__))
    with caplog.at_level(logging.WARNING, "engine.layers"):
        for fan_out, fan_in in (*SHAPES, (7, 33)):
            weight = to_int8(torch.randn(fan_out, fan_in))
            linear = Int8Linear(weight, native=False)
            for dtype, most in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
                x = torch.randn(9, fan_in).to(dtype)
                wanted = x.double() @ (weight.codes.double() * weight.scale.double()[:, None]).T
                whole = linear(x)
                assert error(whole, wanted) < most and whole.dtype == dtype
            x = torch.randn(70, fan_in)
            whole = linear(x)
            for rows in (1, 3, 9, 69):
                assert torch.equal(linear(x[1 : 1 + rows]), whole[1 : 1 + rows])
    assert [record.message for record in caplog.records if "overflows on this processor" in record.message]


def test_parts_side_by_side() -> None:
    x = torch.randn(2, 4)
    assert torch.equal(
        ConcatenatedLinear([lambda x: x + 1, lambda x: x[:, :1]])(x), torch.cat([x + 1, x[:, :1]], 1)
    )
