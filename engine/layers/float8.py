"""Matrix products with weights in 8-bit floats on CPUs, in C."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.weights.quantize import Float8Weight
from kernels.native.float8 import PackedFloat8

_MANY = 32
"""Rows of bfloat16 from which widening and multiplying in bfloat16 is faster."""


class Float8Linear:
    """``x`` [tokens, in] → [tokens, out], computed in float32; of many rows in bfloat16 by torch's product, unless a
    row's result is to be ``invariant``. Only where kernels.native.float8 is ``available``."""

    def __init__(self, weight: Float8Weight, bias: Tensor | None = None, *, invariant: bool = False) -> None:
        self._invariant = invariant
        self.out_features, self.in_features = weight.codes.shape
        self._weight = PackedFloat8(weight.codes, weight.scale, weight.group, bias)

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) >= _MANY and x.dtype == torch.bfloat16 and not self._invariant:
            return self._weight.product_by_library(x)
        return self._weight(x)
