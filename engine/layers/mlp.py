"""The gated MLP."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from engine.layers.product import Product
from kernels.geglu import geglu
from kernels.swiglu import swiglu

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": swiglu,
    "swish": swiglu,
    "gelu_pytorch_tanh": geglu,
}
"""By their names in config.json."""


class GatedMLP:
    """``x`` [tokens, hidden] → [tokens, hidden]."""

    def __init__(self, gate_up: Product, down: Product, activation: str = "silu") -> None:
        self.gate_up = gate_up
        self.down = down
        self.activation = ACTIVATIONS[activation]

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate_up(x)))
