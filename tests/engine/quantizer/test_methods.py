"""What each method promises, on layers of its kind: less error in outputs than rounding to nearest."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.quantizer.awq import clipped, search_scale
from engine.quantizer.gptq import gptq
from engine.quantizer.grid import nearest, rounded
from engine.quantizer.smoothquant import smoothing
from engine.weights.quantize import to_int8


def layer(inputs: int = 128) -> tuple[Tensor, Tensor]:
    """Weights [out, in] and inputs [rows, in], which are correlated, and some of which are large."""
    generator = torch.Generator().manual_seed(3)
    mix = torch.randn(inputs, inputs, generator=generator) / inputs**0.5
    x = torch.randn(1500, inputs, generator=generator) @ mix
    x[:, ::16] *= 12
    return torch.randn(48, inputs, generator=generator), x


def loss(found: Tensor, weight: Tensor, x: Tensor) -> float:
    return float((x @ (found - weight).t()).square().sum())


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("size", [32, 64, 96, 192])
def test_gptq_errs_less_than_rounding(size: int, symmetric: bool) -> None:
    weight, x = layer(192)
    codes = gptq(weight, x.t() @ x, 4, size, symmetric)
    plain = loss(rounded(weight, 4, size, symmetric).weight(), weight, x)
    assert loss(codes.weight(), weight, x) < 0.5 * plain
    # The largest inputs come first, into one group.
    largest = (x.square().sum(0)).argsort(descending=True)
    assert set(codes.group[largest[:size]].tolist()) == {0}


def test_gptq_of_inputs_that_do_not_correlate_is_rounding_to_nearest() -> None:
    """There is nothing to make up for errors with."""
    weight = layer(64)[0]
    hessian = torch.eye(64) * torch.linspace(2, 1, 64)
    codes, plain = gptq(weight, hessian, 4, 32), rounded(weight, 4, 32)
    assert torch.equal(codes.codes, plain.codes) and torch.equal(codes.scale, plain.scale)


def test_gptq_survives_inputs_never_seen_and_too_few_texts() -> None:
    weight, x = layer()
    x = x[:20].clone()
    x[:, 5] = 0
    found = gptq(weight, x.t() @ x, 4, 32).weight()
    assert bool(found.isfinite().all())
    assert loss(found, weight, x) < loss(rounded(weight, 4, 32).weight(), weight, x)
    assert bool(gptq(weight, torch.zeros(128, 128), 4, 32).weight().isfinite().all())


def searched(weight: Tensor, x: Tensor, error: Callable[[Tensor], float]) -> Tensor:
    def of_weights(weights: dict[str, Tensor]) -> float:
        return error(weights["it"])

    return search_scale({"it": weight}, x.abs().mean(0), 4, 32, of_weights)


def test_awq_scales_up_large_inputs() -> None:
    weight, x = layer()
    factor = searched(weight, x, lambda found: loss(found, weight, x))
    assert float(factor[::16].mean()) > 1.5 * float(factor[1::16].mean())
    found = rounded(weight * factor, 4, 32).weight() / factor
    assert loss(found, weight, x) < 0.6 * loss(rounded(weight, 4, 32).weight(), weight, x)


def test_awq_asks_what_follows() -> None:
    """Where what follows ignores the large inputs, they are not scaled up."""
    weight, x = layer()
    quiet = x.clone()
    quiet[:, ::16] = 0
    factor = searched(weight, x, lambda found: loss(found, weight, quiet))
    assert float(factor[::16].mean()) < 1.1 * float(factor[1::16].mean())


def test_awq_does_nothing_where_nothing_is_gained() -> None:
    weight, x = layer()
    assert torch.equal(searched(weight, x, lambda found: 1.0), torch.ones(128))


def test_clipping_never_errs_more() -> None:
    weight, x = layer()
    weight[:, 7] *= 4
    cut = clipped(weight, x, 4, 32)
    assert not torch.equal(cut, weight) and bool((cut.abs() <= weight.abs() + 1e-6).all())
    for group in range(4):
        part = slice(32 * group, 32 * group + 32)
        after, before = (nearest(piece[:, part], 4) for piece in (cut, weight))
        assert loss(after, weight[:, part], x[:, part]) <= loss(before, weight[:, part], x[:, part]) * 1.0001


def test_smoothquant_makes_both_sides_round_better() -> None:
    """With activations in 8 bits, one scale a token, as the checkpoint's readers have them."""
    weight, x = layer()
    factor = smoothing(weight, x.abs().amax(0))

    def product(weight: Tensor, x: Tensor) -> Tensor:
        step = x.abs().amax(1, keepdim=True) / 127
        return ((x / step).round() * step) @ to_int8(weight).weight().t()

    wanted = x @ weight.t()
    smooth = (product(weight * factor, x / factor) - wanted).norm()
    assert float(smooth) < 0.8 * float((product(weight, x) - wanted).norm())


@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points_are_never_zero(bits: int) -> None:
    """GPTQ's first layout stores them less one."""
    for weight in (torch.rand(4, 32) + 0.5, -torch.rand(4, 32) - 0.5, torch.zeros(4, 32)):
        codes = rounded(weight, bits, 32)
        assert int(codes.zero.min()) >= 1 and int(codes.zero.max()) <= 2**bits - 1
        assert bool(codes.weight().isfinite().all())
