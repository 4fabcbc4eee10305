"""A linear layer with plain weights."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from engine.layers.invariance import padded, row_multiple
from kernels.launch import on_triton
from kernels.native.dense import DenseWeight, multiplies


@cache
def _has_bfloat16() -> bool:
    """Whether oneDNN computes in bfloat16 on this processor."""
    return torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class Linear:
    """``x`` [tokens, in] → [tokens, out].

    On a CPU in float32, and with ``invariant`` in any dtype, a row's result is the same to the last bit for any number
    of rows: a request's text does not depend on the rest of the batch. Float32 and bfloat16 have a product in C that
    guarantees this; without a compiler, and in float16, rows are padded to the number that the library needs for it.

    In bfloat16 without ``invariant`` weights are packed for oneDNN, which gives no such guarantee.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        invariant: bool = False,
        native: bool = True,
    ) -> None:
        """``native``: whether the product in C may be taken."""
        self.out_features, self.in_features = weight.shape
        # TOLLGATE_KERNELS=triton on a CPU: weights are kept as on a GPU.
        on_cpu = weight.device.type == "cpu" and not on_triton(weight)
        row_invariant = on_cpu and (invariant or weight.dtype == torch.float32)
        self._native: DenseWeight | None = None
        self._library: _Library | None = None
        self._multiple = 1
        self._weight, self._bias = weight, bias
        if row_invariant and native and multiplies(weight.dtype):
            self._native = DenseWeight(weight, bias)
            # Only its shape is used from here on: an expanded view takes no memory.
            self._weight = weight.new_empty(1).expand(weight.shape)
            return
        if row_invariant:
            self._multiple = row_multiple(_Library, *weight.shape, weight.dtype)
        if on_cpu:
            self._library = _Library(weight, bias)
            self._weight = self._library.weight

    @property
    def nbytes(self) -> int:
        return self._weight.numel() * self._weight.itemsize

    @property
    def is_plain(self) -> bool:
        """Whether the layer has only its ``weight`` [out, in], unpacked and without a bias."""
        packed = self._native is not None or (self._library is not None and self._library.is_packed)
        return not packed and self._bias is None

    @property
    def weight(self) -> Tensor:
        return self._weight

    def move(self, target: Tensor) -> None:
        """Copies a plain weight to ``target``, and uses it there."""
        self._weight = target.copy_(self._weight)
        if self._library is not None:
            self._library.weight = self._weight

    def __call__(self, x: Tensor) -> Tensor:
        if self._native is not None:
            return self._native(x)
        if self._library is not None:
            return padded(self._library, x, self._multiple)
        return functional.linear(x, self._weight, self._bias)


class _Library:
    """MKL's or oneDNN's product with prepacked weights, up to three times as fast for a few rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        self._packed: Tensor | None = None
        self._reordered: Tensor | None = None
        if weight.dtype == torch.float32 and torch.backends.mkl.is_available():
            # The number of rows is only a hint.
            self._packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), 16)
        elif weight.dtype == torch.bfloat16 and _has_bfloat16():
            self._reordered = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 16)
        # The product needs only the shape of the plain weights.
        self.weight = weight.new_empty(1).expand(weight.shape) if self.is_packed else weight

    @property
    def is_packed(self) -> bool:
        return self._packed is not None or self._reordered is not None

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed is not None:
            return torch.ops.mkl._mkl_linear(x, self._packed, self.weight, self._bias, len(x))
        if self._reordered is not None:
            return torch.ops.mkldnn._linear_pointwise(x, self._reordered, self._bias, "none", [], "")
        return functional.linear(x, self.weight, self._bias)
