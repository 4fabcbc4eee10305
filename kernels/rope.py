"""Rotary position embedding in the half-split layout of Hugging Face checkpoints (https://arxiv.org/abs/2104.09864).

    out[t, h, i]     = x[t, h, i] * cos[t, i] - x[t, h, i + d] * sin[t, i]
    out[t, h, i + d] = x[t, h, i + d] * cos[t, i] + x[t, h, i] * sin[t, i]      for i < d = turned / 2
    out[t, h, j]     = x[t, h, j]                                               for j >= turned

``norm_rope`` normalises each head before: ``x / sqrt(mean(x²) + eps) * weight``.

Shapes: ``x`` [tokens, heads, head_dim]; ``cos``, ``sin`` [tokens, 1, turned], the tokens' rows of the tables, each
written twice over; ``weight`` [heads, 2 * head_dim], each head's weight twice over. Both return a new contiguous
tensor of ``x``'s shape and dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rope_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = cos.shape[-1]
    low, high = x[..., :turned].chunk(2, dim=-1)
    turn = torch.cat([-high, low], -1)
    return torch.cat([torch.addcmul(x[..., :turned] * cos, turn, sin), x[..., turned:]], -1)


def norm_rope_reference(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return rope_reference((wide * weight[:, : x.shape[-1]]).to(x.dtype), cos, sin)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if x.shape[-1] != cos.shape[-1]:
        return rope_reference(x, cos, sin)
    # In [-x, x] the middle is what x turns into by a right angle.
    return torch.addcmul(x * cos, _middle(torch.cat([-x, x], -1)), sin)


def norm_rope(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    size = x.shape[-1]
    if x.device.type != "cpu" or size != cos.shape[-1]:
        return norm_rope_reference(x, weight, eps, cos, sin)
    # The layer norm of [-x, x] is an RMS norm (see rms_norm.py), and brings what the turn needs.
    both = torch.layer_norm(torch.cat([-x, x], -1), (2 * size,), None, None, eps) * weight
    return torch.addcmul(both[..., size:] * cos, _middle(both), sin)


def _middle(both: Tensor) -> Tensor:
    quarter = both.shape[-1] // 4
    return both[..., quarter : 3 * quarter]
