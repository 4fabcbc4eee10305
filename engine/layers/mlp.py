"""The MLP, with a gate or without."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from engine.layers.product import Product
from kernels.geglu import geglu
from kernels.swiglu import swiglu

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": swiglu,
    "swish": swiglu,
    "gelu_pytorch_tanh": geglu,
}
"""By their names in config.json."""


def _gelu(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def _relu2(x: Tensor) -> Tensor:
    return functional.relu(x).square_()


PLAIN_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor] | None] = {
    "gelu_pytorch_tanh": _gelu,
    "relu2": _relu2,
    "xielu": None,
}
"""Of MLPs without a gate. ``None``: it has weights of its own."""


class ClampedSwiGLU:
    """gpt-oss's gate: ``(up + 1) * gate * sigmoid(alpha * gate)``, with ``gate`` up to ``limit`` and ``up`` within it.

    ``x`` [tokens, 2 * width], the gate in the first half.
    """

    def __init__(self, alpha: float, limit: float) -> None:
        self._alpha = alpha
        self._limit = limit

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        gate = gate.clamp(max=self._limit)
        # torch computes what is left of whole vectors otherwise: with whole vectors a row, all rows are computed alike.
        width = gate.shape[-1]
        opened = functional.pad(gate * self._alpha, (0, -width % _LANES)).sigmoid_()[..., :width]
        return (up.clamp(-self._limit, self._limit) + 1) * (gate * opened)


_LANES = 32


class SparseGeGLU:
    """Gemma 3n's: of a row's gate only the share of ``1 - sparsity`` that is largest, as a normal distribution has it.

    ``x`` [tokens, 2 * width], the gate in the first half.
    """

    def __init__(self, sparsity: float) -> None:
        self._cutoff = torch.distributions.Normal(0, 1).icdf(torch.tensor(sparsity)).item()

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        cutoff = gate.mean(-1, keepdim=True) + gate.std(-1, keepdim=True, unbiased=False) * self._cutoff
        return _gelu(functional.relu(gate - cutoff)) * up


class Xielu:
    """xIELU (https://arxiv.org/abs/2411.13010): a parabola above zero, an exponential below, in float32.

    ``above`` and ``below`` are the checkpoint's alphas, before softplus.
    """

    def __init__(self, above: float, below: float, beta: float, eps: float) -> None:
        self._above = _softplus(above)
        self._below = _softplus(below) + beta
        self._beta = beta
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.float()
        below = (torch.expm1(wide.clamp(max=self._eps)) - wide) * self._below
        return (torch.where(wide > 0, wide * wide * self._above, below) + wide * self._beta).to(x.dtype)


def _softplus(x: float) -> float:
    return float(functional.softplus(torch.tensor(x, dtype=torch.float64)))


class PlainMLP:
    """An MLP without a gate. ``x`` [tokens, hidden] → [tokens, hidden]."""

    def __init__(self, up: Product, down: Product, activation: Callable[[Tensor], Tensor]) -> None:
        self._up = up
        self._down = down
        self._activation = activation

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(self._activation(self._up(x)))


class GatedMLP:
    """``x`` [tokens, hidden] → [tokens, hidden]."""

    def __init__(
        self, gate_up: Product, down: Product, activation: str | Callable[[Tensor], Tensor] = "silu"
    ) -> None:
        self.gate_up = gate_up
        self.down = down
        self.activation = ACTIVATIONS[activation] if isinstance(activation, str) else activation

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate_up(x)))
