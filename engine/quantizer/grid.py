"""The codes that weights are rounded to: ``(code - zero) * scale``, for each group of inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Codes:
    """A layer's weights [out, in]."""

    codes: Tensor
    """uint8 [out, in]"""
    zero: Tensor
    """int32 [out, groups]"""
    scale: Tensor
    """float16 [out, groups]"""
    group: Tensor
    """int64 [in]: the group of each input"""

    def weight(self) -> Tensor:
        """float32 [out, in]: what a reader computes with."""
        zero, scale = self.zero[:, self.group], self.scale[:, self.group].float()
        return (self.codes - zero) * scale

    def rows(self, start: int, stop: int) -> Codes:
        return Codes(self.codes[start:stop], self.zero[start:stop], self.scale[start:stop], self.group)


def fit(weight: Tensor, bits: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """``weight`` float32 [..., size] → zero float32 [...], and scale float16 [...].

    Zero points begin at 1, as GPTQ's first layout stores them less one, and its readers add it without a carry.
    """
    top = 2**bits - 1
    # Zero is one of the values.
    low, high = weight.amin(-1).clamp(max=0), weight.amax(-1).clamp(min=0)
    if symmetric:
        scale = torch.maximum(-low / 2 ** (bits - 1), high / (2 ** (bits - 1) - 1)).clamp_min(1e-6).half()
        return torch.full_like(low, 2 ** (bits - 1)), scale
    scale = ((high - low) / top).clamp_min(1e-6).half()
    return (-low / scale.float()).round_().clamp_(1, top), scale


def codes_of(weight: Tensor, zero: Tensor, scale: Tensor, bits: int) -> Tensor:
    """float32, in the shape of ``weight`` [..., size]."""
    return (weight / scale.float()[..., None]).round_().add_(zero[..., None]).clamp_(0, 2**bits - 1)


def nearest(weight: Tensor, bits: int) -> Tensor:
    """``weight`` [..., size], rounded to nearest in groups of its last dimension: as a reader computes with it."""
    zero, scale = fit(weight, bits, False)
    wide, middle = scale.float()[..., None], zero[..., None]
    # In place: a search rounds a model dozens of times.
    codes = (weight / wide).round_().add_(middle).clamp_(0, 2**bits - 1)
    return codes.sub_(middle).mul_(wide)


def rounded(weight: Tensor, bits: int, size: int, symmetric: bool = False) -> Codes:
    """To nearest."""
    grouped = weight.view(len(weight), -1, size)
    zero, scale = fit(grouped, bits, symmetric)
    codes = codes_of(grouped, zero, scale, bits).view(weight.shape)
    return Codes(codes.to(torch.uint8), zero.int(), scale, torch.arange(weight.shape[1]) // size)
