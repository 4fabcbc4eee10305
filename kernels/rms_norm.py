"""Root-mean-square normalisation, with the residual sum fused in (https://arxiv.org/abs/1910.07467).

    s = x + residual;   out = s / sqrt(mean(s²) + eps) * weight

Shapes: ``x``, ``residual`` [..., hidden]; ``weight`` float32 [2 * hidden], the weight ``twice`` over. The mean is taken
in float32 whatever the dtype.

On a CPU it is a layer norm of ``[s, -s]``, whose mean is zero and whose variance is ``mean(s²)``: torch has one
operation for that and five to eight for ours (5 µs against 13 for a row of 1,024, torch 2.13), and in it a row's
result depends on that row alone.
"""

from __future__ import annotations

import torch
from torch import Tensor


def twice(weight: Tensor) -> Tensor:
    """The weight in the form that the functions here take."""
    return torch.cat([weight, weight], -1).float()


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * weight[: x.shape[-1]]).to(x.dtype)


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm_reference(total, weight, eps), total


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if x.device.type != "cpu":
        return rms_norm_reference(x, weight, eps)
    size = x.shape[-1]
    return torch.layer_norm(torch.cat([x, -x], -1), (2 * size,), weight, None, eps)[..., :size]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Returns the normalised sum, and the sum itself: the next residual."""
    total = x + residual
    return rms_norm(total, weight, eps), total
