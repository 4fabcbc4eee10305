"""Matrix products with weights in 8-bit floats on CPUs, in C."""

from __future__ import annotations

from torch import Tensor

from engine.weights.quantize import Float8Weight
from kernels.native.float8 import PackedFloat8


class Float8Linear:
    """``x`` [tokens, in] → [tokens, out], computed in float32. Only where kernels.native.float8 is ``available``."""

    def __init__(self, weight: Float8Weight, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.codes.shape
        self._weight = PackedFloat8(weight.codes, weight.scale, weight.group, bias)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return self._weight(x)
