"""Weights in 8, 6 or 4 bits, and their quantization from plain ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.native.linear import scale_in_8_bits

GROUPS = {"int4": 32, "int4-64": 64, "int4-128": 128}
"""Group sizes, by the name of the method; 32 as in llama.cpp's Q4_0."""
_CHUNK = 8192
"""Outputs processed at a time, which avoids a float32 copy of the whole weight."""
W8A8 = "w8a8"
METHODS = ("int8", W8A8, *GROUPS, "fp8")


@dataclass(frozen=True, slots=True)
class ChannelWeight:
    """``codes * scale[:, None]``."""

    codes: Tensor
    """int8 or float8_e4m3fn [out, in]"""
    scale: Tensor
    """float32 [out]"""
    rounds_inputs: bool = False
    """Whether its inputs are rounded to 8 bits, too, with a scale for each token: W8A8. On CPUs alone."""

    def weight(self) -> Tensor:
        """float32 [out, in]"""
        return self.codes.float() * self.scale[:, None]


@dataclass(frozen=True, slots=True)
class Float8Weight:
    """``codes * scale``, with a scale for each group of so many inputs, the last one perhaps with fewer."""

    codes: Tensor
    """float8_e4m3fn [out, in]"""
    scale: Tensor
    """float32 [out, groups]"""
    group: int

    def weight(self) -> Tensor:
        """float32 [out, in]"""
        return self.codes.float() * self.scale.repeat_interleave(self.group, 1)[:, : self.codes.shape[1]]


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """``(codes - 8) * scale + offset``, with a scale and an offset for each group of ``size`` inputs."""

    codes: Tensor
    """uint8 [out, in], from 0 to 15"""
    scale: Tensor
    """float32 [out, in / size]"""
    offset: Tensor
    """float32 [out, in / size]"""
    order: Tensor | None = None
    """int64 [in]: the input of each column of ``codes``; ``None``: in order."""

    @property
    def size(self) -> int:
        return self.codes.shape[1] // self.scale.shape[1]

    def to(self, device: torch.device) -> Int4Weight:
        order = None if self.order is None else self.order.to(device)
        return Int4Weight(self.codes.to(device), self.scale.to(device), self.offset.to(device), order)

    def weight(self) -> Tensor:
        """float32 [out, in]"""
        grouped = self.codes.view(*self.scale.shape, self.size).float()
        weight = ((grouped - 8) * self.scale[..., None] + self.offset[..., None]).view(self.codes.shape)
        return weight if self.order is None else torch.empty_like(weight).index_copy_(1, self.order, weight)


@dataclass(frozen=True, slots=True)
class Int6Weight:
    """``(codes - 32) * scale``, with a scale for each group of 32 inputs."""

    codes: Tensor
    """uint8 [out, in], from 0 to 63"""
    scale: Tensor
    """float32 [out, in / 32]"""

    def weight(self) -> Tensor:
        """float32 [out, in]"""
        grouped = self.codes.view(*self.scale.shape, -1).float() - 32
        return (grouped * self.scale[..., None]).view(self.codes.shape)


def same_inputs(parts: Sequence[Int4Weight]) -> bool:
    """Whether they can be merged: the same group size and order of inputs."""
    first = parts[0]
    return all(
        part.size == first.size and (part.order is first.order is None or _equal(part.order, first.order))
        for part in parts[1:]
    )


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and torch.equal(one, other)


def join(parts: Sequence[Int4Weight]) -> Int4Weight:
    """Concatenates the outputs; ``same_inputs`` must hold."""
    return Int4Weight(
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scale for part in parts]),
        torch.cat([part.offset for part in parts]),
        parts[0].order,
    )


def regrouped(weight: Int4Weight, size: int) -> Int4Weight:
    """The same weights in smaller groups of ``size``, which must divide the present size."""
    times = weight.size // size
    scale, offset = (part.repeat_interleave(times, 1) for part in (weight.scale, weight.offset))
    return Int4Weight(weight.codes, scale, offset, weight.order)


def to_int8(weight: Tensor, *, rounds_inputs: bool = False) -> ChannelWeight:
    """Symmetric, with one scale for each output."""
    codes = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scale = torch.empty(len(weight), dtype=torch.float32, device=weight.device)
    for rows, into, steps in zip(*(t.split(8192) for t in (weight, codes, scale)), strict=True):
        wide = rows.float()
        torch.div(wide.abs().amax(1).clamp_min_(1e-30), 127, out=steps)
        into.copy_((wide / steps[:, None]).round_())
    return ChannelWeight(codes, scale, rounds_inputs)


def to_fp8(weight: Tensor) -> ChannelWeight:
    """With one scale for each output."""
    wide = weight.float()
    scale = wide.abs().amax(1).clamp_min_(1e-30) / torch.finfo(torch.float8_e4m3fn).max
    return ChannelWeight((wide / scale[:, None]).to(torch.float8_e4m3fn), scale)


def to_int4(weight: Tensor, size: int) -> Int4Weight:
    """Asymmetric, from each group's minimum to its maximum; ``size`` must divide the inputs.

    Scales that minimise the squared error, which clip the range, raised the demo model's perplexity by a percent.
    """
    codes, scales, offsets = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device), [], []
    for rows, into in zip(weight.split(_CHUNK), codes.split(_CHUNK), strict=True):
        grouped = rows.float().view(len(rows), -1, size)
        scale, offset = _range(grouped.amin(-1), grouped.amax(-1))
        chosen = grouped.sub(offset[..., None]).div_(scale[..., None]).round_().add_(8).clamp_(0, 15)
        into.copy_(chosen.view(rows.shape))
        scales.append(scale)
        offsets.append(offset)
    return Int4Weight(codes, torch.cat(scales), torch.cat(offsets))


def _range(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Scales of 8 bits, and offsets in sixteenths of them; the range is made to hold zero.

    Int4Weight far from zero, as models hardly have them, take bfloat16 for both.
    """
    far = (low + high).abs() > 2 * (high - low)
    # Plus half a step: the range's centre lies between codes 7 and 8.
    wide = ((high - low) / 15).clamp_min_(1e-20).bfloat16().float()
    wide_offset = ((low + high + wide) / 2).bfloat16().float()
    low, high = low.clamp(max=0), high.clamp(min=0)
    scale = scale_in_8_bits(((high - low) / 15).clamp_min_(1e-20))
    offset = ((low + high) / scale * 8 + 8).round_().clamp_(-127, 127).mul_(high > low) / 16 * scale
    return torch.where(far, wide, scale), torch.where(far, wide_offset, offset)


def to_int6(weight: Tensor) -> Int6Weight:
    """Symmetric, in groups of 32, which must divide the inputs."""
    codes, scales = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device), []
    for rows, into in zip(weight.split(_CHUNK), codes.split(_CHUNK), strict=True):
        grouped = rows.float().view(len(rows), -1, 32)
        scale = scale_in_8_bits(grouped.abs().amax(-1).div_(31.5).clamp_min_(1e-20))
        into.copy_((grouped / scale[..., None]).round_().add_(32).clamp_(0, 63).view(rows.shape))
        scales.append(scale)
    return Int6Weight(codes, torch.cat(scales))
