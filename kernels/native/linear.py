"""``linear.c``: products with weights of 4, 6 or 8 bits on processors with AVX-512 VNNI.

A few rows are bound by reading the weights. Activations keep 15 bits and a sign in each group of inputs, or 8 bits with
one step for a whole row (``W8A8``), and a row's result is the same to the last bit whatever other rows share the
product.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from enum import IntEnum
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from kernels.native.calls import Function
from kernels.native.library import load

_HALF, _TILE = 16, 32
_SIZES = (128, 64, 32)
"""Group sizes of the kernel; wider groups become several."""
_MOST_SUMMED = 2**31 // (128 * 127)
"""Inputs whose products with 8-bit activations 32 bits are sure to hold."""
_PIECE = 8192
"""Outputs packed at a time, which avoids a second copy of the whole weight."""
_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class Kind(IntEnum):
    """The layout of codes and scales, as in linear.c."""

    INT8 = 0
    INT4 = 1
    INT4_SMALL = 2
    INT6 = 3
    W8A8 = 4


class _Weight(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("codes", "scales", "factors", "bias")),
        *((name, ctypes.c_int64) for name in ("outputs", "inputs", "padded", "group", "kind")),
    )


class _Product(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "x", "into")),
        *((name, ctypes.c_int64) for name in ("stride", "count", "dtype")),
    )


class _Library:
    def __init__(self, library: ctypes.CDLL) -> None:
        pointer, integer, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
        self.product = Function(library.product)
        self.widen = library.widen
        self.widen.argtypes = (pointer, long, long, pointer, integer)
        self.widen.restype = None


@cache
def library() -> _Library | None:
    """``None`` if it is not available: torch's products are then used."""
    found = load("linear", "product", "widen")
    return None if found is None else _Library(found)


def available() -> bool:
    return library() is not None


class PackedTensors(NamedTuple):
    """A weight [out, in] in tiles of 32 outputs, as linear.c reads it."""

    kind: Kind
    shape: tuple[int, int]
    group: int
    codes: Tensor
    scales: Tensor
    factors: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.codes, self.scales, self.factors


class PackedWeight:
    """Such a weight with its bias; made by ``pack_int8``, ``pack_int6`` or ``pack_int4``."""

    def __init__(self, packed: PackedTensors, bias: Tensor | None) -> None:
        found = library()
        assert found is not None
        self.packed = packed
        kind, shape, group, codes, scales, factors = packed
        self.out_features, self.in_features = shape
        self.kind = kind
        self._library = found
        if bias is not None:
            bias = bias.float().contiguous()
        self._bias = bias
        self._struct = _Weight(
            codes.data_ptr(),
            scales.data_ptr(),
            factors.data_ptr(),
            None if bias is None else bias.data_ptr(),
            *shape,
            -(-shape[1] // group) * group,
            group,
            kind,
        )
        self._address = ctypes.addressof(self._struct)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.packed.tensors)

    @property
    def columns(self) -> int:
        """Outputs, padded to whole tiles."""
        return -(-self.out_features // _TILE) * _TILE

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [rows, in] → [rows, out], bias included."""
        rows, stride = x.shape[0], self.in_features
        if not x.is_contiguous():
            if x.stride(1) != 1:
                x = x.contiguous()
            stride = x.stride(0)
        out = x.new_empty(rows, self.out_features)
        self._library.product(
            _Product(self._address, x.data_ptr(), out.data_ptr(), stride, rows, _DTYPES[x.dtype])
        )
        return out

    def widen(self, start: int, into: Tensor) -> None:
        """Widens outputs from ``start`` on into bfloat16 [in, outputs]; both must be multiples of 32."""
        first = start // _TILE
        last = first + into.shape[1] // _TILE
        self._library.widen(self._address, first, last, into.data_ptr(), torch.get_num_threads())


def pack_int8(
    codes: Tensor, scale: Tensor, bias: Tensor | None, *, rounds_inputs: bool = False
) -> PackedWeight:
    """``codes`` int8 [out, in], ``scale`` float32 [out]. ``rounds_inputs``: rows of activations to 8 bits, too."""
    packed = _tiles(codes.view(torch.uint8), 64, 128, _bytes)
    shape = (codes.shape[0], codes.shape[1])
    kind, group = Kind.INT8, 64
    if rounds_inputs and shape[1] <= _MOST_SUMMED:
        kind, group = Kind.W8A8, -(-shape[1] // 64) * 64
    return PackedWeight(PackedTensors(kind, shape, group, packed, scale.new_empty(0), _by_tile(scale)), bias)


def pack_int6(codes: Tensor, scale: Tensor, bias: Tensor | None) -> PackedWeight:
    """``codes`` uint8 [out, in], 32 meaning zero, ``scale`` float32 [out, in / 32] as ``scale_in_8_bits`` rounds it."""
    packed = _tiles(codes, 32, 32, _six_bits)
    smallest = _smallest_scale(scale)
    shape = (codes.shape[0], codes.shape[1])
    return PackedWeight(
        PackedTensors(Kind.INT6, shape, 32, packed, _by_tile(_bits(scale, smallest)), _by_tile(smallest)),
        bias,
    )


def pack_int4(codes: Tensor, scale: Tensor, offset: Tensor, bias: Tensor | None) -> PackedWeight:
    """``codes`` uint8 [out, in], ``scale`` and ``offset`` float32 [out, groups]."""
    size = codes.shape[1] // scale.shape[1]
    group = next(part for part in _SIZES if size % part == 0)
    packed = _tiles(codes, group, 0, _nibbles)
    if (exact := _in_8_bits(scale, offset)) is not None:
        kind, (scales, factors) = Kind.INT4_SMALL, exact
    else:
        kind, scales, factors = Kind.INT4, torch.stack([scale, offset], -1).bfloat16(), scale.new_empty(0)
    scales = _by_tile(scales.repeat_interleave(size // group, 1))
    shape = (codes.shape[0], codes.shape[1])
    return PackedWeight(PackedTensors(kind, shape, group, packed, scales, _by_tile(factors)), bias)


def joined(parts: Iterable[PackedTensors], outputs: int) -> PackedTensors:
    """One weight of the ``outputs`` of several, which follow each other; all but the last have whole tiles.

    Raises ``ValueError`` if they are of different forms, or other than so many."""
    whole: PackedTensors | None = None
    count = 0
    for part in parts:
        if whole is None:
            tiles, mine = -(-outputs // _TILE), -(-part.shape[0] // _TILE)
            made = [
                tensor.new_empty(len(tensor) // mine * tiles, *tensor.shape[1:]) for tensor in part.tensors
            ]
            whole = PackedTensors(part.kind, (outputs, part.shape[1]), part.group, *made)
        if part.kind != whole.kind or part.group != whole.group or count % _TILE:
            raise ValueError("these weights cannot be joined: they are packed in different forms")
        for tensor, into in zip(part.tensors, whole.tensors, strict=True):
            tile = len(into) // -(-outputs // _TILE)
            first = count // _TILE * tile
            into[first : first + len(tensor)] = tensor
        count += part.shape[0]
    if whole is None or count != outputs:
        raise ValueError(f"the weights have {count} outputs in place of {outputs}")
    return whole


def _tiles(codes: Tensor, group: int, zero: int, pack: Callable[[Tensor], Tensor]) -> Tensor:
    """Codes [out, in] in tiles, padded with ``zero`` in both dimensions.

    ``pack`` makes of [..., in] the bytes of an output: [..., blocks of inputs, vectors, 4].
    """
    tiles, place = codes.new_empty(0), 0
    for piece in codes.split(_PIECE):
        missing = (0, -codes.shape[1] % group, 0, -len(piece) % _TILE)
        filled = functional.pad(piece, missing, value=zero)
        lanes = pack(filled.view(-1, 2, _HALF, filled.shape[1]))
        if not place:  # the first is as large as any: filled in place, there is no second copy of the whole
            tiles = codes.new_empty(-(-len(codes) // _TILE) * _TILE * (lanes.numel() // len(filled)))
        made = lanes.permute(0, 3, 4, 1, 2, 5).reshape(-1)
        tiles[place : place + len(made)] = made
        place += len(made)
    return tiles


def _bytes(codes: Tensor) -> Tensor:
    return (codes ^ 128).unflatten(-1, (-1, 1, 4))


def _nibbles(codes: Tensor) -> Tensor:
    fours = codes.unflatten(-1, (-1, 2, 4))
    return (fours[..., 0, :] | fours[..., 1, :] << 4).unsqueeze(-2)


def _six_bits(codes: Tensor) -> Tensor:
    fours = codes.unflatten(-1, (-1, 4, 4))
    lower, upper = fours & 15, fours >> 4
    one, two = (lower[..., i, :] | lower[..., i + 1, :] << 4 for i in (0, 2))
    rest = upper[..., 0, :] | upper[..., 1, :] << 2 | upper[..., 2, :] << 4 | upper[..., 3, :] << 6
    return torch.stack([one, two, rest], -2)


def _by_tile(rows: Tensor) -> Tensor:
    """[out, ...] → [tiles, ..., 32]"""
    filled = torch.cat([rows, rows.new_zeros(-len(rows) % _TILE, *rows.shape[1:])])
    return filled.unflatten(0, (-1, _TILE)).movedim(1, -1).contiguous()


def scale_in_8_bits(scale: Tensor) -> Tensor:
    """``scale`` float32 [out, groups] rounded up to a mantissa of 5 bits, and a 3-bit exponent relative to the
    row's."""
    rounded = (scale.view(torch.int32) + (1 << _DROPPED) - 1 >> _DROPPED << _DROPPED).view(torch.float32)
    return torch.maximum(rounded, _smallest_scale(rounded)[:, None])


_DROPPED = 18
"""Mantissa bits of float32 that an 8-bit scale drops."""


def _smallest_scale(scale: Tensor) -> Tensor:
    """The smallest 8-bit scale of each row: a power of two."""
    exponent = scale.amax(1).view(torch.int32) >> 23
    return ((exponent - 7).clamp_(min=1) << 23).view(torch.float32)


def _bits(scale: Tensor, smallest: Tensor) -> Tensor:
    return (scale.view(torch.int32) - smallest.view(torch.int32)[:, None] >> _DROPPED).to(torch.uint8)


def _in_8_bits(scale: Tensor, offset: Tensor) -> tuple[Tensor, Tensor] | None:
    """8-bit scales and offsets in sixteenths, uint8 [out, groups, 2], and each row's smallest scale [out], if they are
    exact."""
    sixteenths = offset * 16 / scale
    if not torch.equal(scale, scale_in_8_bits(scale)) or not torch.equal(
        sixteenths, sixteenths.round().clamp_(-127, 127)
    ):
        return None
    smallest = _smallest_scale(scale)
    return torch.stack([_bits(scale, smallest), sixteenths.to(torch.int8).view(torch.uint8)], -1), smallest
