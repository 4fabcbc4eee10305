"""``dense.c``: products with plain weights, float32 or bfloat16, in which every sum runs in one order.

A row's result is the same to the last bit in any batch, with any number of threads, and on any processor. Libraries
choose the order of summation by the number of rows.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor
from torch.nn import functional

from kernels.native.tiled import COLUMNS, Plain, Product, tiled_library

_KINDS = {torch.float32: 0, torch.bfloat16: 1}
_WORD = 4
"""Bytes."""


class _Weight(ctypes.Structure):
    """As in dense.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("words", "bias")),
        *((name, ctypes.c_int64) for name in ("outputs", "depth", "kind")),
    )


def multiplies(dtype: torch.dtype) -> bool:
    """Whether there is such a product on this machine."""
    return dtype in _KINDS and tiled_library("dense") is not None


class DenseWeight:
    """A weight [out, in] on a CPU, of a dtype that this machine ``multiplies``."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        found = tiled_library("dense")
        if found is None:
            raise RuntimeError("Products of dense.c cannot be had here.")
        self.out_features, self.in_features = weight.shape
        self.dtype = weight.dtype
        self._library = found
        self._share = _WORD // weight.itemsize
        """Inputs in a word."""
        self._words = _tiles(weight, found.width, self._share)
        self._bias = None if bias is None else bias.float().contiguous()
        self._added: Tensor | None = None
        """The bias as ``product_by_library`` takes it."""
        if bias is not None and weight.dtype == torch.bfloat16:
            self._added = functional.pad(bias.to(weight.dtype), (0, -len(bias) % found.width))
        self._struct = _Weight(
            self._words.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            self.out_features,
            -(-self.in_features // self._share),
            _KINDS[weight.dtype],
        )
        self._address = ctypes.addressof(self._struct)

    @property
    def nbytes(self) -> int:
        return self._words.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [rows, in] → [rows, out], bias included."""
        if missing := -self.in_features % self._share:
            x = functional.pad(x, (0, missing))
        elif x.stride(1) != 1 or x.stride(0) % self._share:
            x = x.contiguous()
        out = x.new_empty(len(x), self.out_features)
        stride = x.stride(0) // self._share
        self._library.product(Product(self._address, x.data_ptr(), out.data_ptr(), stride, len(x)))
        return out

    def product_by_library(self, x: Tensor) -> Tensor:
        """The same by torch's product, of bfloat16, whose sums it may order as it likes: for many rows. The weight is
        laid out for it in pieces."""
        inputs, width = self._share * self._struct.depth, self._library.width
        if missing := inputs - self.in_features:
            x = functional.pad(x, (0, missing))
        tiles = self._words.shape[0]
        step = max(1, COLUMNS // width)
        out = x.new_empty(len(x), tiles * width)
        scratch = x.new_empty(inputs * width * min(step, tiles))
        for first in range(0, tiles, step):
            last = min(first + step, tiles)
            piece = scratch[: inputs * width * (last - first)].view(inputs, -1)
            self._library.plain(Plain(self._address, piece.data_ptr(), first, last))
            columns = slice(first * width, last * width)
            if self._added is None:
                torch.mm(x, piece, out=out[:, columns])
            else:
                torch.addmm(self._added[columns], x, piece, out=out[:, columns])
        return out[:, : self.out_features]


def _tiles(weight: Tensor, width: int, share: int) -> Tensor:
    """[out, in] → [tiles, in / share, width, share], padded with zeros."""
    out, inputs = weight.shape
    filled = functional.pad(weight, (0, -inputs % share, 0, -out % width))
    return filled.view(-1, width, filled.shape[1] // share, share).transpose(1, 2).contiguous()
