"""Checkpoints in MXFP4 (https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf), as
gpt-oss is published: 4-bit floats (E2M1) in blocks of 32 inputs, each with a power of two (E8M0) as its scale.

``blocks`` uint8 [out, in / 32, 16] holds two numbers a byte, the first in the lower bits; ``scales`` uint8
[out, in / 32] the power of two, plus 127.

Where there is a product in C for weights in 6 bits, they are kept as ``Int6Weight``, to the bit: twice a 4-bit float is
one of 0, 1, 2, 3, 4, 6, 8 and 12. That takes 6.25 bits a weight, with the scales; the file has 4.25. Anywhere else, and
where the scales of an output are too far apart for that, they are widened: 16 bits a weight.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from engine.weights.quantize import Int6Weight
from engine.weights.quantized_format import RawTensors, pick
from kernels.native.linear import available, scale_in_8_bits

_BLOCK = 32
_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12)
"""Twice the magnitude of each 4-bit float; the highest of the four bits is its sign."""
_BIAS = 127
_ZERO = 32
"""An ``Int6Weight``'s code for zero."""


class Mxfp4:
    name = "MXFP4"
    unused: tuple[str, ...] = ()

    def __init__(self, settings: Mapping[str, Any]) -> None:
        pass

    def holds(self, tensors: RawTensors, name: str) -> bool:
        return f"{name}.blocks" in tensors

    def read(
        self, tensors: RawTensors, name: str, out_features: int, in_features: int
    ) -> Int6Weight | Tensor:
        blocks = pick(tensors, f"{name}.blocks", (out_features, -(-in_features // _BLOCK), _BLOCK // 2))
        exponents = pick(tensors, f"{name}.scales", tuple(blocks.shape[:2]))
        doubled, scale = unpacked(blocks), halves(exponents)
        weight = Int6Weight((doubled + _ZERO).to(torch.uint8).flatten(1), scale)
        if available() and (exact := in_six_bits(weight)) is not None:
            return exact
        return weight.weight()


def unpacked(blocks: Tensor) -> Tensor:
    """Twice the 4-bit floats: int8 [out, in / 32, 32]."""
    values = torch.tensor([*_DOUBLED, *(-value for value in _DOUBLED)], dtype=torch.int8)
    pairs = torch.stack([blocks & 15, blocks >> 4], -1)
    return values[pairs.flatten(-2).int()]


def halves(exponents: Tensor) -> Tensor:
    """Half the scales, float32; 255 is none, NaN."""
    stored = exponents.view(torch.uint8)
    powers = torch.ldexp(torch.ones(stored.shape), stored.int() - (_BIAS + 1))
    return powers.masked_fill(stored == 255, torch.nan)


def in_six_bits(weight: Int6Weight) -> Int6Weight | None:
    """The same numbers with scales as the product in C has them; ``None`` if that cannot be to the bit."""
    if not bool(weight.scale.isfinite().all()):
        return None
    codes = weight.codes.view(*weight.scale.shape, _BLOCK)
    used = (codes != _ZERO).any(-1)
    scale = scale_in_8_bits(weight.scale * used)
    if torch.equal(scale[used], weight.scale[used]):
        return Int6Weight(weight.codes, scale)
    # Where a scale is larger than the block's, the codes are smaller: even ones at least once.
    small = (codes.float() - _ZERO) * (weight.scale / scale)[..., None]
    if not torch.equal(small, small.round()):
        return None
    return Int6Weight((small + _ZERO).to(torch.uint8).view(weight.codes.shape), scale)
