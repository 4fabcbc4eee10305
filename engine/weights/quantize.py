"""Weights in 8 or 4 bits: what they are, and how they are made from plain ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

GROUPS = {"int4": 32, "int4-64": 64, "int4-128": 128}
"""Weights that share a scale, by the name of the method; 32 as in llama.cpp's Q4_0."""
METHODS = ("int8", *GROUPS, "fp8")


@dataclass(frozen=True, slots=True)
class Channels:
    """``codes * scale[:, None]``."""

    codes: Tensor
    """int8 or float8_e4m3fn [out, in]"""
    scale: Tensor
    """float32 [out]"""


@dataclass(frozen=True, slots=True)
class Groups:
    """``(codes - 8) * scale + offset``, where ``size`` weights in a row of ``codes`` share scale and offset."""

    codes: Tensor
    """uint8 [out, in], from 0 to 15"""
    scale: Tensor
    """float32 [out, in / size]"""
    offset: Tensor
    """float32 [out, in / size]"""
    order: Tensor | None = None
    """int64 [in]: the input that each column of ``codes`` belongs to; ``None``: its own."""

    @property
    def size(self) -> int:
        return self.codes.shape[1] // self.scale.shape[1]

    def to(self, device: torch.device) -> Groups:
        order = None if self.order is None else self.order.to(device)
        return Groups(self.codes.to(device), self.scale.to(device), self.offset.to(device), order)

    def weight(self) -> Tensor:
        """float32 [out, in]"""
        grouped = self.codes.view(*self.scale.shape, self.size).float()
        weight = ((grouped - 8) * self.scale[..., None] + self.offset[..., None]).view(self.codes.shape)
        return weight if self.order is None else torch.empty_like(weight).index_copy_(1, self.order, weight)


def same_inputs(parts: Sequence[Groups]) -> bool:
    """Whether they can be one product: equal groups of equal inputs."""
    first = parts[0]
    return all(
        part.size == first.size and (part.order is first.order is None or _equal(part.order, first.order))
        for part in parts[1:]
    )


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and torch.equal(one, other)


def join(parts: Sequence[Groups]) -> Groups:
    """The outputs of all; ``same_inputs`` must hold."""
    return Groups(
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scale for part in parts]),
        torch.cat([part.offset for part in parts]),
        parts[0].order,
    )


def to_int8(weight: Tensor) -> Channels:
    """Symmetric, one scale an output. In pieces, so that no second whole copy in float32 arises."""
    codes = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scale = torch.empty(len(weight), dtype=torch.float32, device=weight.device)
    for rows, into, steps in zip(*(t.split(8192) for t in (weight, codes, scale)), strict=True):
        wide = rows.float()
        torch.div(wide.abs().amax(1).clamp_min_(1e-30), 127, out=steps)
        into.copy_((wide / steps[:, None]).round_())
    return Channels(codes, scale)


def to_fp8(weight: Tensor) -> Channels:
    """One scale an output."""
    wide = weight.float()
    scale = wide.abs().amax(1).clamp_min_(1e-30) / torch.finfo(torch.float8_e4m3fn).max
    return Channels((wide / scale[:, None]).to(torch.float8_e4m3fn), scale)


def to_int4(weight: Tensor, size: int) -> Groups:
    """Groups of ``size`` along the inputs, from their least to their largest weight.

    Scale and offset are rounded to bfloat16, in which they are computed with, before the codes are chosen. ``size``
    must divide the inputs.
    """
    codes = torch.empty(weight.shape, dtype=torch.uint8, device=weight.device)
    scales, offsets = [], []
    for rows, into in zip(weight.split(8192), codes.split(8192), strict=True):
        grouped = rows.float().view(len(rows), -1, size)
        least, most = grouped.amin(-1), grouped.amax(-1)
        scale = ((most - least) / 15).clamp_min_(1e-20).bfloat16().float()
        offset = (least + 8 * scale).bfloat16().float()
        chosen = ((grouped - offset[..., None]) / scale[..., None]).round_().add_(8).clamp_(0, 15)
        into.copy_(chosen.view(rows.shape))
        scales.append(scale)
        offsets.append(offset)
    return Groups(codes, torch.cat(scales), torch.cat(offsets))
