"""Linear layers with weights in 8 or 4 bits on a GPU, on the Triton kernels of kernels/.

Each layer owns the counters by which a launch's programs detect which of them finishes last. So launches of one layer
must not overlap: they are on one stream, and CUDA graphs are replayed one at a time.

Without Triton, or with ``TOLLGATE_KERNELS=reference``, weights are widened and multiplied, which saves memory only.
"""

from __future__ import annotations

from torch import Tensor

from engine.weights.quantize import ChannelWeight, Int4Weight
from kernels.launch import on_triton
from kernels.linear_fp8 import linear_fp8
from kernels.linear_w4a16 import counters_w4, linear_w4a16, pack_w4
from kernels.linear_w8a16 import counters_w8, linear_w8a16


def takes(codes: Tensor) -> bool:
    """Whether a layer with these codes runs here: on a GPU, or in Triton's interpreter."""
    return codes.device.type != "cpu" or on_triton(codes)


class GpuInt8Linear:
    """``x`` [tokens, in] → [tokens, out]. Few rows and many round differently; with ``invariant`` all are computed like
    few."""

    def __init__(self, weight: ChannelWeight, bias: Tensor | None = None, *, invariant: bool = False) -> None:
        self.out_features, self.in_features = weight.codes.shape
        self._codes, self._scale, self._bias = weight.codes.contiguous(), weight.scale, bias
        self._counters = counters_w8(weight.codes)
        self._invariant = invariant

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes + self._scale.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return linear_w8a16(
            x, self._codes, self._scale, self._bias, self._counters, invariant=self._invariant
        )


class GpuInt4Linear:
    """``x`` [tokens, in] → [tokens, out]. Few rows and many round differently; with ``invariant`` all are computed like
    few."""

    def __init__(self, weight: Int4Weight, bias: Tensor | None = None, *, invariant: bool = False) -> None:
        self.out_features, self.in_features = weight.codes.shape
        self._weight = pack_w4(weight.codes, weight.scale, weight.offset)
        self._order, self._bias = weight.order, bias
        self._counters = counters_w4(self._weight)
        self._invariant = invariant

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        if self._order is not None:
            x = x[:, self._order]
        return linear_w4a16(x, self._weight, self._bias, self._counters, invariant=self._invariant)


class Fp8Linear:
    """``x`` [tokens, in] → [tokens, out], weights in 8-bit floats (e4m3) with a scale an output.

    With many rows, on chips with FP8 matrix instructions, ``x`` is quantized too, with a scale for each row.
    """

    def __init__(self, weight: ChannelWeight, bias: Tensor | None = None, *, invariant: bool = False) -> None:
        self.out_features, self.in_features = weight.codes.shape
        self._codes, self._scale, self._bias = weight.codes.contiguous(), weight.scale, bias
        self._counters = counters_w8(weight.codes)
        self._invariant = invariant

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes + self._scale.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return linear_fp8(x, self._codes, self._scale, self._bias, self._counters, invariant=self._invariant)
