"""A linear layer with plain weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from engine.layers.invariance import padded, row_multiple
from engine.layers.library_product import LibraryProduct, has_bfloat16
from engine.layers.product_choice import ProductChoice, choose
from kernels.launch import on_triton
from kernels.native.dense import DenseWeight, multiplies


class Linear:
    """``x`` [tokens, in] → [tokens, out].

    On a CPU in float32, and with ``invariant`` in any dtype, a row's result is the same to the last bit for any number
    of rows: a request's text does not depend on the rest of the batch. Float32 and bfloat16 have a product in C that
    guarantees this; without a compiler, and in float16, rows are padded to the number that the library needs for it.

    In bfloat16 without ``invariant`` the product in C is taken or oneDNN's, which gives no such guarantee: whichever
    was measured to be faster (``product_choice.py``).
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
        self._library: LibraryProduct | None = None
        self._multiple = 1
        self._many: int | None = None
        """Rows from which the library multiplies what is laid out for C."""
        self._weight, self._bias = weight, bias
        chosen = row_invariant
        if on_cpu and not row_invariant and weight.dtype == torch.bfloat16 and native:
            both = multiplies(weight.dtype) and has_bfloat16()
            choice = choose(*weight.shape) if both else ProductChoice(native=False)
            chosen, self._many = choice.native, choice.many
        if chosen and native and multiplies(weight.dtype):
            self._native = DenseWeight(weight, bias)
            # Only its shape is used from here on: an expanded view takes no memory.
            self._weight = weight.new_empty(1).expand(weight.shape)
            return
        if row_invariant:
            self._multiple = row_multiple(LibraryProduct, *weight.shape, weight.dtype)
        if on_cpu:
            self._library = LibraryProduct(weight, bias)
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
            if self._many is not None and len(x) >= self._many:
                return self._native.product_by_library(x)
            return self._native(x)
        if self._library is not None:
            return padded(self._library, x, self._multiple)
        return functional.linear(x, self._weight, self._bias)
