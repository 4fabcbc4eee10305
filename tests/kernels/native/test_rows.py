from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.geglu import geglu, geglu_reference
from kernels.native import rows
from kernels.rms_norm import add_rms_norm, rms_norm, rms_norm_reference, twice
from kernels.rope import (
    norm_rope,
    norm_rope_reference,
    rope,
    rope_reference,
    shifted_rope,
    shifted_rope_reference,
)
from kernels.swiglu import swiglu, swiglu_reference

pytestmark = pytest.mark.skipif(
    not rows.takes(torch.empty(1, 16, dtype=torch.bfloat16), 16), reason="AVX-512 and a C compiler"
)


def bf16(*size: int) -> Tensor:
    return torch.randn(*size).bfloat16()


def assert_rounded_once(actual: Tensor, expected: Tensor) -> None:
    """``expected`` in float64."""
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.double(), expected, rtol=2**-8, atol=1e-5)


def turn(tokens: int, turned: int) -> tuple[Tensor, Tensor]:
    angles = torch.randn(tokens, 1, turned // 2)
    return tuple(torch.cat([part, part], -1).bfloat16() for part in (angles.cos(), angles.sin()))


@pytest.mark.parametrize("size", [16, 80, 1024])
@pytest.mark.parametrize("count", [0, 1, 7, 300])
def test_norms(count: int, size: int) -> None:
    x, residual, weight = bf16(count, size) + 2, bf16(count, size), twice(torch.randn(size))
    assert_rounded_once(rms_norm(x, weight, 1e-5), rms_norm_reference_in_64(x, weight))
    out, total = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert_rounded_once(out, rms_norm_reference_in_64(total, weight))


def rms_norm_reference_in_64(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight[: x.shape[-1]].double()


@pytest.mark.parametrize(("dim", "turned"), [(32, 32), (64, 64), (96, 64), (128, 128), (256, 256)])
@pytest.mark.parametrize("tokens", [0, 1, 5, 130])
def test_rotation_of_heads_among_others(tokens: int, dim: int, turned: int) -> None:
    qkv = bf16(tokens, 5 * dim).view(tokens, 5, dim)
    x, (cos, sin), weight = qkv[:, :3], turn(tokens, turned), bf16(3, 2 * dim)
    weight[:, dim:] = weight[:, :dim]
    assert_rounded_once(rope(x, cos, sin), rope_reference(x.double(), cos.double(), sin.double()))
    wide = x.double()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight[:, :dim].double()
    expected = rope_reference(wide, cos.double(), sin.double())
    torch.testing.assert_close(norm_rope(x, weight, 1e-6, cos, sin).double(), expected, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize(("dim", "turned"), [(64, 64), (96, 64), (128, 128)])
@pytest.mark.parametrize("tokens", [0, 1, 5, 130])
def test_a_large_bias_is_gone_before_the_only_rounding(tokens: int, dim: int, turned: int) -> None:
    x, (cos, sin) = bf16(tokens, 5 * dim).view(tokens, 5, dim)[:, :3], turn(tokens, turned)
    bias, factors, shift = torch.randn(3, dim) * 200, torch.rand(3, dim), torch.randn(3, dim) * 100
    wide = rope_reference(x.double() + bias.double(), cos.double(), sin.double())
    expected = wide * factors.double() - shift.double()
    actual = shifted_rope(x, bias, factors, shift, cos, sin)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.double(), expected, rtol=2**-8, atol=1e-4)
    again = shifted_rope_reference(x, bias, factors, shift, cos, sin)
    torch.testing.assert_close(actual.float(), again.float(), rtol=2**-7, atol=1e-4)
    if tokens > 2:
        part = shifted_rope(x[1:3], bias, factors, shift, cos[1:3], sin[1:3])
        assert torch.equal(part, actual[1:3])


@pytest.mark.parametrize("width", [16, 48, 3072])
@pytest.mark.parametrize("count", [0, 1, 33])
def test_gates(count: int, width: int) -> None:
    gate_up = bf16(count, 2 * width) * 4
    assert_rounded_once(swiglu(gate_up), swiglu_reference(gate_up.double()))
    torch.testing.assert_close(
        geglu(gate_up).double(), geglu_reference(gate_up.double()), rtol=2**-7, atol=1e-4
    )


def test_gates_far_out_are_open_or_shut() -> None:
    gate_up = torch.tensor([[1e4, -1e4, 3e38, -3e38] * 4 + [2.0] * 16]).bfloat16()
    assert swiglu(gate_up)[0, :2].tolist() == [2 * float(gate_up[0, 0]), 0.0]
    assert geglu(gate_up)[0, :2].tolist() == [2 * float(gate_up[0, 0]), 0.0]
    assert not swiglu(gate_up).isnan().any()


def test_a_row_is_the_same_to_the_bit_whoever_shares_the_step() -> None:
    x, weight, gate_up = bf16(300, 256), twice(torch.randn(256)), bf16(300, 512)
    for some in (slice(0, 1), slice(7, 10), slice(3, 260)):
        assert torch.equal(rms_norm(x[some], weight, 1e-6), rms_norm(x, weight, 1e-6)[some])
        assert torch.equal(swiglu(gate_up[some]), swiglu(gate_up)[some])


@pytest.mark.parametrize("spoilt", [float("nan"), float("inf")])
def test_what_is_no_number_stays_in_its_row(spoilt: float) -> None:
    x, weight = bf16(3, 64), twice(torch.ones(64))
    expected = rms_norm(x, weight, 1e-6)
    x[1, 5] = spoilt
    found = rms_norm(x, weight, 1e-6)
    assert torch.equal(found[[0, 2]], expected[[0, 2]]) and found[1].isnan().any()


def test_other_sizes_and_dtypes_take_torch() -> None:
    assert not rows.takes(bf16(1, 24), 24)
    assert not rows.takes(torch.randn(1, 32), 32)
    x, weight = bf16(2, 24), twice(torch.randn(24))
    torch.testing.assert_close(rms_norm(x, weight, 1e-6), rms_norm_reference(x, weight, 1e-6))
    y, (cos, sin), ones = bf16(2, 3, 24), turn(2, 24), twice(torch.ones(3, 24)).bfloat16()
    expected = norm_rope_reference(y, ones, 1e-6, cos, sin)
    torch.testing.assert_close(norm_rope(y, ones, 1e-6, cos, sin), expected)
