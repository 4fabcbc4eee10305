"""The gated MLP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from engine.weights.loader import Loader, Product
from kernels.geglu import geglu
from kernels.swiglu import swiglu

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": swiglu,
    "swish": swiglu,
    "gelu_pytorch_tanh": geglu,
}
"""By the names that config.json has for them."""


class GatedMLP:
    """``x`` [tokens, hidden] → [tokens, hidden]."""

    def __init__(self, gate_up: Product, down: Product, activation: str = "silu") -> None:
        self.gate_up = gate_up
        self.down = down
        self.activation = ACTIVATIONS[activation]

    @classmethod
    def load(
        cls,
        weights: Loader,
        name: str,
        hidden: int,
        width: int,
        *,
        bias: bool = False,
        activation: str = "silu",
        gate_up: Sequence[str] = ("gate_proj", "up_proj"),
        down: str = "down_proj",
    ) -> GatedMLP:
        """``gate_up``: the names of the gate's and the other layer, or one for both."""
        parts = {f"{name}.{part}": 2 * width // len(gate_up) for part in gate_up}
        return cls(
            weights.linear(parts, hidden, bias=bias, split="out"),
            weights.linear({f"{name}.{down}": hidden}, width, bias=bias, split="in"),
            activation,
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate_up(x)))
