"""``float8.c``: products with weights in 8-bit floats (e4m3), which are widened in registers.

A row's result is the same to the last bit in any batch, and with any number of threads; but ``product_by_library``'s is
not.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor
from torch.nn import functional

from kernels.native.tiled import COLUMNS, Plain, Product, tiled_library


class _Weight(ctypes.Structure):
    """As in float8.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("codes", "scales", "bias")),
        *((name, ctypes.c_int64) for name in ("outputs", "inputs", "group")),
    )


def available() -> bool:
    return tiled_library("float8") is not None


class PackedFloat8:
    """A weight on a CPU; only where ``available``."""

    def __init__(self, codes: Tensor, scale: Tensor, group: int, bias: Tensor | None = None) -> None:
        """``codes`` float8_e4m3fn [out, in], ``scale`` float32 [out, groups] of ``group`` inputs each, the last one
        perhaps fewer; ``bias`` [out]."""
        found = tiled_library("float8")
        if found is None:
            raise RuntimeError("Products of float8.c cannot be had here.")
        self.out_features, self.in_features = codes.shape
        self._library = found
        self._missing = scale.shape[1] * group - self.in_features
        self._codes = _tiles(codes.view(torch.uint8), found.width, self._missing)
        self._scales = _tiles(scale.float(), found.width, 0)
        self._bias = None if bias is None else bias.float().contiguous()
        self._struct = _Weight(
            self._codes.data_ptr(),
            self._scales.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            self.out_features,
            self.in_features + self._missing,
            group,
        )
        self._address = ctypes.addressof(self._struct)

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes + self._scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [rows, in] → [rows, out], bias included."""
        wide = x.float()
        if self._missing:
            wide = functional.pad(wide, (0, self._missing))
        elif wide.stride(1) != 1:
            wide = wide.contiguous()
        out = wide.new_empty(len(x), self.out_features)
        self._library.product(Product(self._address, wide.data_ptr(), out.data_ptr(), wide.stride(0), len(x)))
        return out.to(x.dtype)

    def product_by_library(self, x: Tensor) -> Tensor:
        """The same in bfloat16 by torch's product, for many rows: weights are widened in pieces."""
        width, tiles = self._library.width, len(self._codes)
        wide = functional.pad(x, (0, self._missing)) if self._missing else x
        step = max(1, COLUMNS // width)
        out = x.new_empty(len(x), tiles * width)
        scratch = x.new_empty(wide.shape[1] * width * min(step, tiles))
        for first in range(0, tiles, step):
            last = min(first + step, tiles)
            piece = scratch[: wide.shape[1] * width * (last - first)].view(wide.shape[1], -1)
            self._library.plain(Plain(self._address, piece.data_ptr(), first, last))
            torch.mm(wide, piece, out=out[:, first * width : last * width])
        found = out[:, : self.out_features]
        return found if self._bias is None else found + self._bias.to(x.dtype)


def _tiles(rows: Tensor, width: int, missing: int) -> Tensor:
    """[out, n] → [tiles, n + missing, width], padded with zeros."""
    filled = functional.pad(rows, (0, missing, 0, -len(rows) % width))
    return filled.view(-1, width, filled.shape[1]).transpose(1, 2).contiguous()
