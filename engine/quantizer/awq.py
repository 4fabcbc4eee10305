"""AWQ (Lin et al., https://arxiv.org/abs/2306.00978): inputs with large activations are scaled up before rounding.

The factor of an input is its mean activation to a power that is searched for; what produces the input is divided by it,
so that the product stays the same. Then each group's range is searched for, as clipping it may lose less. Both are
measured by the squared error of the layers' outputs on a sample of their inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.quantizer.grid import nearest

_POWERS = 20
_CLIPS = 20
"""Steps of the range, of which the upper half is tried."""
_ROWS = 1024
"""Outputs at a time."""


def search_scale(weight: Tensor, sample: Tensor, magnitude: Tensor, bits: int, size: int) -> Tensor:
    """Factors float32 [in] of ``weight`` [out, in], for its inputs ``sample`` [rows, in] of the mean absolute values
    ``magnitude`` [in]."""
    best, least = torch.ones_like(magnitude), float("inf")
    # Which error is smaller is seen in bfloat16, too, and four times as fast.
    coarse = sample.bfloat16()
    for step in range(_POWERS):
        factor = magnitude.clamp_min(1e-4) ** (step / _POWERS)
        factor /= (factor.max() * factor.min()).sqrt()
        error = 0.0
        for rows in weight.split(_ROWS):
            scaled = (rows * factor).view(len(rows), -1, size)
            off = nearest(scaled, bits).view(rows.shape).div_(factor).sub_(rows)
            error += float((coarse @ off.bfloat16().t()).float().square().sum())
        if error < least:
            best, least = factor, error
    return best


def clipped(weight: Tensor, sample: Tensor, bits: int, size: int) -> Tensor:
    """``weight`` with each group cut to the range that loses least."""
    inputs = sample.view(len(sample), -1, size).transpose(0, 1)
    # A group's error is a quadratic form of its inputs' products.
    products = inputs.transpose(1, 2) @ inputs
    return torch.cat(
        [_clipped(rows.view(len(rows), -1, size), products, bits) for rows in weight.split(_ROWS)]
    )


def _clipped(grouped: Tensor, products: Tensor, bits: int) -> Tensor:
    """``grouped`` [out, groups, size], ``products`` [groups, size, size]"""
    most = grouped.abs().amax(-1, keepdim=True)
    best, least = most, torch.full(grouped.shape[:2], float("inf"))
    for step in range(_CLIPS // 2):
        limit = most * (1 - step / _CLIPS)
        cut = grouped.clamp(-limit, limit)
        by_group = (nearest(cut, bits) - grouped).transpose(0, 1)
        error = (by_group @ products).mul_(by_group).sum(-1).t()
        better = error < least
        best = torch.where(better[..., None], limit, best)
        least = torch.where(better, error, least)
    return grouped.clamp(-best, best).flatten(1)
