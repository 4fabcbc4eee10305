"""A matrix product with weights that never change."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from engine.layers.invariance import filled, least_rows
from kernels.launch import on_triton

_NARROW = 192
"""Outputs below which MKL takes another path for a single row: it is then computed as two."""
_FEW = 12
"""Rows below which MKL, on some processors, computes what is left over of blocks of four by another path: 8 with one
thread, 12 where two share the rows."""


@cache
def _block() -> int:
    """Rows to which few rows are filled up, so that each has the same bits as among many: 1, or 4 where it takes that.

    Found out by trying, as it depends on the processor: 1 on the Xeon, 4 on the EPYC that we have seen.
    """
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, 256, generator=generator) for size in (16, _NARROW))
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, 16)
    whole = torch.ops.mkl._mkl_linear(x, packed, weight, None, 16)
    alike = all(
        torch.equal(torch.ops.mkl._mkl_linear(x[:rows], packed, weight, None, rows), whole[:rows])
        for rows in range(1, _FEW)
    )
    return 1 if alike else 4


@cache
def _has_bfloat16() -> bool:
    """Whether oneDNN computes in bfloat16 on this processor."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class Linear:
    """``x`` [tokens, in] → [tokens, out].

    On a CPU in float32 the weights are packed once for MKL. That is up to three times faster for a few rows, and a
    row's result is the same to the last bit however many rows share the product, which plain ``linear`` does not
    give below 16 rows (measured, torch 2.13): a request's text does not depend on its neighbours.

    In bfloat16 they are packed for oneDNN, twice as fast for up to 16 rows. That gives no such promise: a single row
    of 1,536 inputs or more has other bits (seen with one thread and with two). With ``invariant`` few rows are
    filled up to as many as it takes, in any dtype, or ``StartupError`` is raised.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, *, invariant: bool = False) -> None:
        self.out_features, self.in_features = weight.shape
        self._least = least_rows(Linear, *weight.shape, weight.dtype) if invariant else 1
        self._bias = bias
        self._packed: Tensor | None = None
        self._reordered: Tensor | None = None
        # Where Triton is forced, weights are kept as a GPU has them.
        on_cpu = weight.device.type == "cpu" and not on_triton(weight)
        if on_cpu and weight.dtype == torch.float32 and torch.backends.mkl.is_available():
            # The number of rows is a hint: any number may follow.
            self._packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), 16)
            # The product asks for the plain weights' shape alone; this has it and takes no memory.
            weight = weight.new_empty(1).expand(weight.shape)
        elif on_cpu and weight.dtype == torch.bfloat16 and _has_bfloat16():
            self._reordered = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 16)
            weight = weight.new_empty(1).expand(weight.shape)
        self._weight = weight

    @property
    def nbytes(self) -> int:
        return self._weight.numel() * self._weight.itemsize

    @property
    def is_plain(self) -> bool:
        """Whether the layer is nothing but its ``weight`` [out, in], as it was given."""
        return self._packed is None and self._reordered is None and self._bias is None

    @property
    def weight(self) -> Tensor:
        return self._weight

    def move(self, place: Tensor) -> None:
        """A plain weight stands in ``place`` from here on."""
        self._weight = place.copy_(self._weight)

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x) if len(x) >= self._least else filled(self._product, x, self._least)

    def _product(self, x: Tensor) -> Tensor:
        if self._packed is not None:
            rows = x.shape[0]
            if rows < _FEW and (missing := -rows % _block()):
                return self._product(functional.pad(x, (0, 0, 0, missing)))[:rows]
            if rows == 1 and self.out_features < _NARROW:
                return self._product(x.expand(2, -1))[:1]
            return torch.ops.mkl._mkl_linear(x, self._packed, self._weight, self._bias, x.shape[0])
        if self._reordered is not None:
            return torch.ops.mkldnn._linear_pointwise(x, self._reordered, self._bias, "none", [], "")
        return functional.linear(x, self._weight, self._bias)
