from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.geglu import geglu_triton
from kernels.swiglu import BLOCK, swiglu_triton
from tests.kernels.triton_cases import assert_close, poisoned

__all__ = ["poisoned"]


def silu(z: Tensor) -> Tensor:
    return z / (1 + (-z).exp())


def gelu(z: Tensor) -> Tensor:
    return z / 2 * (1 + (math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)).tanh())


FUNCTIONS = [pytest.param(swiglu_triton, silu, id="swiglu"), pytest.param(geglu_triton, gelu, id="geglu")]


@pytest.mark.parametrize(("function", "activation"), FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 7, 96, BLOCK - 1, BLOCK, BLOCK + 1])
@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_equals_the_formula(function, activation, tokens, width, dtype) -> None:
    gate_up = (torch.randn(tokens, 2 * width) * 3).to(dtype)
    gate, up = gate_up.double().chunk(2, -1)
    assert_close(function(gate_up), activation(gate) * up)


@pytest.mark.parametrize(("function", "activation"), FUNCTIONS)
def test_large_numbers_do_not_overflow(function, activation) -> None:
    gates = torch.tensor([[-1e4, -100.0, -20.0, 0.0, 20.0, 100.0, 1e4]])
    assert_close(function(torch.cat([gates, torch.ones_like(gates)], -1)), gates.clamp(min=0))


@pytest.mark.parametrize(("function", "activation"), FUNCTIONS)
def test_rows_may_lie_apart_and_in_more_dimensions(function, activation) -> None:
    wide = torch.randn(2, 3, 100)
    assert torch.equal(function(wide[..., :64]), function(wide[..., :64].contiguous()))
    part = wide[0, :, 10:74]
    assert torch.equal(function(part), function(part.clone()))
