"""The gated MLP."""

from __future__ import annotations

from torch import Tensor

from engine.layers.linear import Linear
from engine.weights.loader import Loader
from kernels.swiglu import swiglu


class GatedMLP:
    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self._gate_up = gate_up
        self._down = down

    @classmethod
    def load(cls, weights: Loader, name: str, hidden: int, width: int, *, bias: bool = False) -> GatedMLP:
        gate_up = {f"{name}.gate_proj": width, f"{name}.up_proj": width}
        return cls(
            weights.linear(gate_up, hidden, bias=bias, split="out"),
            weights.linear({f"{name}.down_proj": hidden}, width, bias=bias, split="in"),
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(swiglu(self._gate_up(x)))
