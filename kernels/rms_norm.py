"""Root-mean-square normalisation, with the residual sum fused in (https://arxiv.org/abs/1910.07467).

    s = x + residual;   out = s / sqrt(mean(s²) + eps) * weight

Shapes: ``x``, ``residual`` [..., hidden]; ``weight`` [hidden]. The mean is taken in float32 whatever the dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return wide.to(x.dtype) * weight


def add_rms_norm_reference(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm_reference(total, weight, eps), total


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm_reference(x, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Returns the normalised sum, and the sum itself: the next residual."""
    return add_rms_norm_reference(x, residual, weight, eps)
