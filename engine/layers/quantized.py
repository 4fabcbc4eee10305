"""Matrix products with weights in 8 or 4 bits.

On a CPU with VNNI they use kernels/native/linear.c, on other CPUs torch's packed products, on a GPU quantized_gpu.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from engine.layers.invariance import padded, row_multiple
from engine.layers.native import NativeLinear
from engine.layers.quantized_gpu import Fp8Linear as Fp8Linear
from engine.layers.quantized_gpu import GpuInt4Linear, GpuInt8Linear, takes
from engine.weights.quantize import ChannelWeight, Int4Weight, to_int8
from kernels.native.linear import available, pack_int4, pack_int8

log = logging.getLogger("engine.layers")

_FEW = 3
"""Rows of bfloat16 up to which torch's product with 8-bit weights is faster."""
_ROWS = 64
"""Rows computed at a time, so that intermediate results stay in the processor's cache."""
_MANY = 48
"""Rows from which widening 4-bit weights and multiplying in bfloat16 is faster."""
_MANY_INT8 = 96
"""The same for 8-bit weights."""
_BLOCK = 64
"""Outputs that torch packs together."""
_COLUMNS = 1024
"""Outputs widened at a time."""
_GROUPS = (256, 128, 64, 32)
"""Group sizes that torch's product supports."""


class Int8Linear:
    """``x`` [tokens, in] → [tokens, out], ``weight ≈ codes * scale``.

    Activations are quantized to 16 bits: on a CPU a row is written as ``step * (256 * high + low)`` with two rows of
    8-bit integers, whose products with the weights are exact sums of integers. A row's result is therefore the same to
    the last bit in any batch. Up to ``_FEW`` rows of bfloat16 torch has a product that reads the weights faster (with 8
    rows it takes twice as long, on a processor with VNNI), and from ``_MANY_INT8`` rows on, as in a prompt, widening
    the weights is faster (512 rows by a quarter); both round differently, and are not used with ``invariant``.

    Without VNNI torch's integer product is not exact: see ``sums_are_exact``. Activations are then not quantized.

    A weight that ``rounds_inputs`` has them in 8 bits first, with a step for each row.
    """

    def __init__(
        self,
        weight: ChannelWeight,
        bias: Tensor | None = None,
        *,
        invariant: bool = False,
        native: bool = True,
    ) -> None:
        self.out_features, self.in_features = weight.codes.shape
        self._native: NativeLinear | GpuInt8Linear | None = None
        if takes(weight.codes):
            self._native = GpuInt8Linear(weight, bias, invariant=invariant)
            return
        if native and available():
            self._native = NativeLinear(
                pack_int8(weight.codes, weight.scale, bias, rounds_inputs=weight.rounds_inputs)
            )
            return
        self._rounds_inputs = weight.rounds_inputs
        self._codes = weight.codes.t()
        self._scale = weight.scale
        self._bias = bias
        # torch's product reads past the end of rows that are not a multiple of the vector length.
        self._few = 0 if invariant or self.in_features % 32 else _FEW
        self._many = None if invariant else _MANY_INT8
        self._rough_scale = weight.scale.bfloat16()
        self._floats: _FloatProduct | None = None
        if not sums_are_exact():
            self._floats = _FloatProduct(weight)
            self._multiple = row_multiple(_FloatProduct.of, *weight.codes.shape, torch.float32)

    @property
    def packed(self) -> tuple[NativeLinear, ...]:
        """What kernels/native/linear.c computes, if that is all of the layer."""
        return (self._native,) if isinstance(self._native, NativeLinear) else ()

    @property
    def nbytes(self) -> int:
        if self._native is not None:
            return self._native.nbytes
        return self._codes.nbytes + self._scale.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        if self._native is not None:
            return self._native(x)
        if self._rounds_inputs:
            return self._product(in_8_bits(x.float())).to(x.dtype)
        return self._product(x)

    def _product(self, x: Tensor) -> Tensor:
        if len(x) <= self._few and x.dtype == torch.bfloat16:
            product = torch._weight_int8pack_mm(x.contiguous(), self._codes.t(), self._rough_scale)
        elif self._many and len(x) >= self._many and x.dtype == torch.bfloat16:
            product = self._widened(x)
        elif self._floats is not None:
            product = padded(self._floats, x.float(), self._multiple).to(x.dtype)
        elif len(x) <= _ROWS:
            product = self._exact(x)
        else:
            product = torch.cat([self._exact(rows) for rows in x.split(_ROWS)])
        return product if self._bias is None else product + self._bias

    def _widened(self, x: Tensor) -> Tensor:
        product = x.new_empty(len(x), self.out_features)
        columns = min(_COLUMNS // 2, self.out_features)
        scratch = x.new_empty(columns, self.in_features)
        for start in range(0, self.out_features, columns):
            codes = self._codes.t()[start : start + columns]
            weight = scratch[: len(codes)].copy_(codes)
            torch.mm(x, weight.t(), out=product[:, start : start + columns])
        return product.mul_(self._rough_scale)

    def _exact(self, x: Tensor) -> Tensor:
        rows = len(x)
        wide = x.float()
        # 126 * 256: rounding up must not exceed 16 bits.
        step = wide.abs().amax(1, keepdim=True).clamp_min_(1e-30).div_(126 * 256)
        # Adding 128 rounds the upper byte to nearest; the lower byte is then the remainder plus 128.
        integers = (wide / step).round_().to(torch.int16).add_(128)
        planes = integers.view(torch.int8).view(rows, -1, 2).permute(2, 0, 1).contiguous()
        planes[0].bitwise_xor_(-128)
        sums = torch._int_mm(planes.view(2 * rows, -1), self._codes).float()
        product = torch.add(sums[:rows], sums[rows:], alpha=256)
        return product.mul_(step).mul_(self._scale).to(x.dtype)


def in_8_bits(x: Tensor) -> Tensor:
    """``x`` float32 [tokens, in], rounded to 8 bits with a step for each token, as W8A8 has it."""
    step = x.abs().amax(1, keepdim=True).clamp_min_(1e-30).div_(127)
    return (x / step).round_().mul_(step)


@cache
def sums_are_exact() -> bool:
    """Whether torch's product of 8-bit integers is exact. Without VNNI, or where it is disabled, oneDNN adds two
    products of bytes in 16 bits, which overflow silently."""
    x = torch.full((4, 64), 127, dtype=torch.int8)
    exact = all(
        torch.equal(torch._int_mm(x, codes), (x.int() @ codes.int()))
        for codes in (torch.full((64, 64), code, dtype=torch.int8) for code in (127, -127))
    )
    if not exact:
        log.warning(
            "torch's product of 8-bit integers overflows on this processor (no VNNI): 8-bit weights are multiplied "
            "as floats, as right and slower."
        )
    return exact


class _FloatProduct:
    """``x`` float32 [rows, in] → [rows, out]; codes are widened as they are read."""

    def __init__(self, weight: ChannelWeight) -> None:
        # torch's product reads past the end of rows that are not a multiple of the vector length.
        self._missing = -weight.codes.shape[1] % 32
        self._codes = functional.pad(weight.codes, (0, self._missing)) if self._missing else weight.codes
        self._scale = weight.scale

    @classmethod
    def of(cls, weight: Tensor) -> _FloatProduct:
        return cls(to_int8(weight))

    def __call__(self, x: Tensor) -> Tensor:
        x = functional.pad(x, (0, self._missing)) if self._missing else x.contiguous()
        return torch._weight_int8pack_mm(x, self._codes, self._scale)


class Int4Linear:
    """``x`` [tokens, in] → [tokens, out], with weights in groups of 4-bit codes. On a CPU computed in bfloat16.

    A few rows use torch's packed product, in which a row's result does not depend on the others. From ``_MANY`` rows
    on, as in a prompt, weights are widened in pieces and multiplied in bfloat16, which is faster but rounds
    differently, and is not used with ``invariant``."""

    def __init__(
        self,
        weight: Int4Weight,
        bias: Tensor | None = None,
        *,
        invariant: bool = False,
        native: bool = True,
    ) -> None:
        self.out_features, self.in_features = weight.codes.shape
        self._bias = bias
        self._order: Tensor | None = None
        self._native: NativeLinear | GpuInt4Linear | None = None
        if takes(weight.codes):
            self._native = GpuInt4Linear(weight, bias, invariant=invariant)
            return
        self._order = weight.order
        if native and available():
            packed = pack_int4(weight.codes, weight.scale, weight.offset, bias)
            self._native = NativeLinear(packed, bias, widen=not invariant)
            return
        self._many: int | None = None
        # Groups wider than torch supports become several with the same scale; outputs are padded to whole blocks.
        size = next(size for size in _GROUPS if weight.size % size == 0)
        missing = -self.out_features % _BLOCK
        codes = functional.pad(weight.codes, (0, 0, 0, missing)).to(torch.int32)
        scales = torch.stack([weight.scale, weight.offset], -1).repeat_interleave(weight.size // size, 1)
        self._scales = (
            functional.pad(scales, (0, 0, 0, 0, 0, missing)).transpose(0, 1).contiguous().bfloat16()
        )
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        self._size = size
        if not invariant and (unpack := _layout()) is not None:
            self._many, self._unpack = _MANY, unpack
            self._factors, self._offsets = (self._scales[..., i].contiguous() for i in range(2))

    @property
    def packed(self) -> tuple[NativeLinear, ...]:
        """As of ``Int8Linear``."""
        alone = isinstance(self._native, NativeLinear) and self._order is None
        return (self._native,) if alone else ()

    @property
    def nbytes(self) -> int:
        if self._native is not None:
            return self._native.nbytes
        return self._packed.nbytes + self._scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        if self._order is not None:
            x = x[:, self._order]
        if self._native is not None:
            return self._native(x)
        product = self._product(x.bfloat16().contiguous())[:, : self.out_features].to(x.dtype)
        return product if self._bias is None else product + self._bias

    def _product(self, x: Tensor) -> Tensor:
        if self._many is None or len(x) < self._many:
            return torch.ops.aten._weight_int4pack_mm_for_cpu(x, self._packed, self._size, self._scales)
        outputs = self._packed.shape[0]
        product = x.new_empty(len(x), outputs)
        scratch = x.new_empty(self.in_features, min(_COLUMNS, outputs))
        for start in range(0, outputs, _COLUMNS):
            stop = min(start + _COLUMNS, outputs)
            piece = scratch[:, : stop - start]
            if stop - start < scratch.shape[1]:
                piece = scratch.view(-1)[: self.in_features * (stop - start)].view(self.in_features, -1)
            self._unpack(self._packed[start:stop], piece)
            groups = piece.view(-1, self._size, stop - start)
            factor, offset = (t[:, None, start:stop] for t in (self._factors, self._offsets))
            torch.addcmul(offset, groups, factor, out=groups)
            product[:, start:stop] = x @ piece
        return product


@cache
def _layout() -> Callable[[Tensor, Tensor], None] | None:
    """The inverse of torch's packing of 4-bit weights on this processor, detected by trying; ``None`` if it is
    unknown."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(16, (2 * _BLOCK, 64), generator=generator, dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    found = torch.empty(64, 2 * _BLOCK)

    def halves(block: int) -> Callable[[Tensor, Tensor], None]:
        """Blocks of outputs whose bytes pair an output of the first half with one of the second half."""

        def unpack(packed: Tensor, into: Tensor) -> None:
            """``packed`` [out, in / 2] → ``into`` [in, out]: codes less 8."""
            pairs = packed.view(-1, len(into), block // 2)
            blocks = into.view(len(into), -1, 2, block // 2)
            for half, codes in enumerate((pairs & 15, pairs >> 4)):
                blocks[:, :, half] = codes.view(torch.int8).sub_(8).transpose(0, 1)

        return unpack

    for block in (64, 32):
        unpack = halves(block)
        unpack(packed, found)
        if torch.equal(found, codes.t().float() - 8):
            return unpack
    return None


class ConcatenatedLinear:
    """Layers with the same input that cannot be merged: their outputs are concatenated."""

    def __init__(self, parts: Sequence[Callable[[Tensor], Tensor]]) -> None:
        self._parts = parts

    @property
    def packed(self) -> tuple[NativeLinear, ...]:
        """As of ``Int8Linear``."""
        found = [packed_parts(part) for part in self._parts]
        return tuple(part for parts in found for part in parts) if all(found) else ()

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self._parts], -1)


def packed_parts(layer: Callable[[Tensor], Tensor]) -> tuple[NativeLinear, ...]:
    """The layer's parts if kernels/native/linear.c computes all of them: their outputs are concatenated."""
    match layer:
        case NativeLinear():
            return (layer,)
        case Int8Linear() | Int4Linear() | ConcatenatedLinear():
            return layer.packed
    return ()
