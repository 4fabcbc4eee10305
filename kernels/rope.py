"""Rotary position embedding in the half-split layout of Hugging Face checkpoints (https://arxiv.org/abs/2104.09864).

    out[t, h, i]     = x[t, h, i] * cos[t, i] - x[t, h, i + d] * sin[t, i]
    out[t, h, i + d] = x[t, h, i + d] * cos[t, i] + x[t, h, i] * sin[t, i]      for i < d = head_dim / 2

Shapes: ``x`` [tokens, heads, head_dim]; ``cos``, ``sin`` [tokens, head_dim / 2], the rows of the tables that belong
to the tokens' positions. Returns a new contiguous tensor of ``x``'s shape.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rope_reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = cos[:, None], sin[:, None]
    low, high = x.chunk(2, dim=-1)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    out_low, out_high = out.chunk(2, dim=-1)
    torch.mul(low, cos, out=out_low).addcmul_(high, sin, value=-1)
    torch.mul(high, cos, out=out_high).addcmul_(low, sin)
    return out


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rope_reference(x, cos, sin)
