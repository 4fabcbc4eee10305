"""Matrix products with weights in 8 or 4 bits.

On a CPU with VNNI they are kernels/native/linear.c, elsewhere torch's own packed ones. On a GPU the integer weights are
widened and multiplied: that saves memory, not time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from engine.weights.quantize import Channels, Groups
from kernels.native.linear import PackedWeight, available, pack_int4, pack_int8

_FEW = 3
"""Rows of bfloat16 up to which torch's product with 8-bit weights is the faster one."""
_ROWS = 64
"""Rows computed at a time, so that what lies between stays in the processor's cache."""
_MANY = 48
"""Rows from which widening 4-bit weights and multiplying them in bfloat16 beats multiplying them as they are."""
_MANY_NATIVE = 48
"""As ``_MANY``, where the product is in C."""
_MANY_INT8 = 96
"""As ``_MANY``, of 8-bit weights."""
_BLOCK = 64
"""Outputs that torch packs together."""
_COLUMNS = 1024
"""Outputs widened at a time."""
_GROUPS = (256, 128, 64, 32)
"""Sizes of groups that torch's product knows."""


class _Native:
    """A product in C: few rows with the codes as they are, many with codes widened to bfloat16 piece by piece.

    The latter rounds otherwise; with ``invariant`` it is left out.
    """

    def __init__(self, weight: PackedWeight, bias: Tensor | None, invariant: bool) -> None:
        self._weight = weight
        self._bias = bias
        self._many = None if invariant else _MANY_NATIVE

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        if self._many is None or len(x) < self._many or x.dtype != torch.bfloat16:
            return self._weight(x)
        columns, outputs = self._weight.columns, self._weight.out_features
        product = x.new_empty(len(x), columns)
        scratch = x.new_empty(self._weight.in_features * min(_COLUMNS, columns))
        for start in range(0, columns, _COLUMNS):
            stop = min(start + _COLUMNS, columns)
            piece = scratch[: self._weight.in_features * (stop - start)].view(-1, stop - start)
            self._weight.widen(start, piece)
            torch.mm(x, piece, out=product[:, start:stop])
        product = product[:, :outputs]
        return product if self._bias is None else product + self._bias


class Int8Linear:
    """``x`` [tokens, in] → [tokens, out], ``weight ≈ codes * scale``.

    Activations keep 15 bits and a sign: on a CPU a row is written as ``step * (256 * high + low)`` with two rows of
    8-bit integers, whose products with the weights are sums of integers, so exact. A row's result is therefore the
    same to the last bit whoever shares the product. Up to ``_FEW`` rows of bfloat16 torch has a product that reads
    the weights faster (8 rows take it twice as long, on a processor with VNNI), and from ``_MANY_INT8`` rows on, as in
    a prompt, a product of widened weights is faster (512 rows by a quarter); both round otherwise, and with
    ``invariant`` they are left out.
    """

    def __init__(
        self,
        weight: Channels,
        bias: Tensor | None = None,
        *,
        invariant: bool = False,
        native: bool = True,
    ) -> None:
        self.out_features, self.in_features = weight.codes.shape
        self._native: _Native | None = None
        if native and weight.codes.device.type == "cpu" and available():
            self._native = _Native(pack_int8(weight.codes, weight.scale, bias), bias, invariant)
            return
        self._codes = weight.codes.t()
        self._scale = weight.scale
        self._bias = bias
        # Torch's product reads past the end of rows that are no whole vectors.
        self._few = 0 if invariant or self.in_features % 32 else _FEW
        self._many = None if invariant else _MANY_INT8
        self._rough_scale = weight.scale.bfloat16()

    @property
    def nbytes(self) -> int:
        if self._native is not None:
            return self._native.nbytes
        return self._codes.nbytes + self._scale.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        if self._native is not None:
            return self._native(x)
        if x.device.type != "cpu":
            product = (x @ self._codes.to(x.dtype)) * self._scale.to(x.dtype)
        elif len(x) <= self._few and x.dtype == torch.bfloat16:
            product = torch._weight_int8pack_mm(x.contiguous(), self._codes.t(), self._rough_scale)
        elif self._many and len(x) >= self._many and x.dtype == torch.bfloat16:
            product = self._widened(x)
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
        # 126 * 256: what is rounded up must not leave the 16 bits.
        step = wide.abs().amax(1, keepdim=True).clamp_min_(1e-30).div_(126 * 256)
        # With 128 added, the upper byte is rounded to nearest, and the lower one is what is left plus 128.
        integers = (wide / step).round_().to(torch.int16).add_(128)
        planes = integers.view(torch.int8).view(rows, -1, 2).permute(2, 0, 1).contiguous()
        planes[0].bitwise_xor_(-128)
        sums = torch._int_mm(planes.view(2 * rows, -1), self._codes).float()
        product = torch.add(sums[:rows], sums[rows:], alpha=256)
        return product.mul_(step).mul_(self._scale).to(x.dtype)


class Int4Linear:
    """``x`` [tokens, in] → [tokens, out], with weights in groups of 4-bit codes. On a CPU computed in bfloat16.

    A few rows go through torch's packed product, in which a row's result does not depend on the others. From
    ``_MANY`` rows on, as in a prompt, weights are widened piece by piece and multiplied in bfloat16, which is faster,
    but rounds otherwise; with ``invariant`` they never are.
    """

    def __init__(
        self,
        weight: Groups,
        bias: Tensor | None = None,
        *,
        invariant: bool = False,
        native: bool = True,
    ) -> None:
        self.out_features, self.in_features = weight.codes.shape
        self._bias = bias
        self._order = weight.order
        self._native: _Native | None = None
        if native and weight.codes.device.type == "cpu" and available():
            self._native = _Native(
                pack_int4(weight.codes, weight.scale, weight.offset, bias), bias, invariant
            )
            return
        self._packed: Tensor | None = None
        self._many: int | None = None
        if weight.codes.device.type != "cpu":
            self._pairs = weight.codes[:, 0::2] | weight.codes[:, 1::2] << 4
            self._scale, self._offset = weight.scale, weight.offset
            return
        # Groups wider than torch's become several of the same scale; outputs are filled up to whole blocks.
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
    def nbytes(self) -> int:
        if self._native is not None:
            return self._native.nbytes
        if self._packed is None:
            return self._pairs.nbytes + self._scale.nbytes + self._offset.nbytes
        return self._packed.nbytes + self._scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        if self._order is not None:
            x = x[:, self._order]
        if self._native is not None:
            return self._native(x)
        if self._packed is None:
            product = functional.linear(x, self._widened(x.dtype))
        else:
            product = self._product(x.bfloat16().contiguous())[:, : self.out_features].to(x.dtype)
        return product if self._bias is None else product + self._bias

    def _product(self, x: Tensor) -> Tensor:
        assert self._packed is not None
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

    def _widened(self, dtype: torch.dtype) -> Tensor:
        codes = torch.stack([self._pairs & 15, self._pairs >> 4], -1).view(*self._scale.shape, -1).to(dtype)
        weight = (codes - 8) * self._scale[..., None].to(dtype) + self._offset[..., None].to(dtype)
        return weight.view(self.out_features, self.in_features)


@cache
def _layout() -> Callable[[Tensor, Tensor], None] | None:
    """How torch packs 4-bit weights on this processor, found out by trying; ``None`` if not in a way known here."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(16, (2 * _BLOCK, 64), generator=generator, dtype=torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
    found = torch.empty(64, 2 * _BLOCK)

    def halves(block: int) -> Callable[[Tensor, Tensor], None]:
        """Blocks of outputs; in a byte, one of the block's first half and the one as far on in the second."""

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


class Fp8Linear:
    """``x`` [tokens, in] → [tokens, out], both sides in 8-bit floats (e4m3) with a scale a row.

    GPUs from compute capability 8.9 on; before 9.0 their product knows one scale a tensor, and the rows' are applied
    after it.
    """

    def __init__(self, weight: Channels, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.codes.shape
        self._codes = weight.codes.t()
        self._scale = weight.scale[None]
        self._bias = bias
        self._by_row = torch.cuda.get_device_capability(weight.codes.device) >= (9, 0)
        self._one = weight.scale.new_ones(())

    @property
    def nbytes(self) -> int:
        return self._codes.nbytes + self._scale.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        largest = torch.finfo(torch.float8_e4m3fn).max
        step = x.abs().amax(1, keepdim=True).float().clamp_min(1e-12) / largest
        rows = (x / step).to(torch.float8_e4m3fn)
        if self._by_row:
            product = torch._scaled_mm(rows, self._codes, step, self._scale, out_dtype=torch.bfloat16)
        else:
            product = torch._scaled_mm(rows, self._codes, self._one, self._one, out_dtype=torch.float32)
            product = product * step * self._scale
        product = product.to(x.dtype)
        return product if self._bias is None else product + self._bias


class Joined:
    """Products of the same input that cannot be one: their outputs side by side."""

    def __init__(self, parts: Sequence[Callable[[Tensor], Tensor]]) -> None:
        self._parts = parts

    def __call__(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self._parts], -1)
