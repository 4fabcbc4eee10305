"""The gated MLP."""

from __future__ import annotations

from torch import Tensor

from engine.layers.linear import Linear
from engine.weights.safetensors import SafetensorsReader
from kernels.swiglu import swiglu


class GatedMLP:
    def __init__(self, gate_up: Linear, down: Linear) -> None:
        self._gate_up = gate_up
        self._down = down

    @classmethod
    def load(
        cls, weights: SafetensorsReader, name: str, hidden: int, width: int, *, bias: bool = False
    ) -> GatedMLP:
        gate_up = {f"{name}.gate_proj": width, f"{name}.up_proj": width}
        return cls(
            Linear.load(weights, gate_up, hidden, bias=bias),
            Linear.load(weights, {f"{name}.down_proj": hidden}, width, bias=bias),
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self._down(swiglu(self._gate_up(x)))
