"""Matrix products with weights in 4, 6 or 8 bits on CPUs with VNNI, in C."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.weights.quantize import Int6Weight
from kernels.native.linear import Kind, PackedTensors, PackedWeight, pack_int6

_MANY = 96
"""Rows of bfloat16 from which widening 4-bit weights and multiplying in bfloat16 is faster."""
_COLUMNS = 512
"""Outputs widened at a time."""


class NativeLinear:
    """``x`` [tokens, in] → [tokens, out].

    Sums are of integers, with activations quantized to 16 bits, so a row's result is the same to the last bit in any
    batch. With ``widen`` weights are widened in pieces for many rows, as in a prompt, which rounds differently.
    """

    def __init__(self, weight: PackedWeight, bias: Tensor | None = None, *, widen: bool = False) -> None:
        self._weight = weight
        self._bias = bias
        self._widen = widen

    @property
    def packed(self) -> PackedTensors:
        return self._weight.packed

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        if self._widen and x.shape[0] >= _MANY and x.dtype == torch.bfloat16:
            product = self._widened(x)
            return product if self._bias is None else product + self._bias
        return self._weight(x)

    def _widened(self, x: Tensor) -> Tensor:
        inputs, columns = self._weight.in_features, self._weight.columns
        product = x.new_empty(len(x), columns)
        scratch = x.new_empty(inputs * min(_COLUMNS, columns))
        for start in range(0, columns, _COLUMNS):
            stop = min(start + _COLUMNS, columns)
            piece = scratch[: inputs * (stop - start)].view(inputs, -1)
            self._weight.widen(start, piece)
            torch.mm(x, piece, out=product[:, start:stop])
        return product[:, : self._weight.out_features]


def unpacked(packed: PackedTensors, bias: Tensor | None, *, invariant: bool) -> NativeLinear:
    """The layer that ``packed`` was of."""
    widen = packed.kind in (Kind.INT4, Kind.INT4_SMALL) and not invariant
    return NativeLinear(PackedWeight(packed, bias), bias, widen=widen)


class Int6Linear(NativeLinear):
    """The LM head in 6 bits, where layers have 4. Only where ``available``."""

    def __init__(self, weight: Int6Weight, bias: Tensor | None = None) -> None:
        super().__init__(pack_int6(weight.codes, weight.scale, bias), bias)
        self.out_features, self.in_features = weight.codes.shape
