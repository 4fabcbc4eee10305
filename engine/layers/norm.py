"""RMS normalisation, alone or with the residual sum."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.rms_norm import add_rms_norm, rms_norm, twice
from kernels.rope import norm_rope


class RMSNorm:
    """``offset`` is added to the weight: 1 for checkpoints that store the weight minus one."""

    def __init__(self, weight: Tensor, eps: float, *, offset: float = 0.0) -> None:
        self._weight = twice(weight) + offset
        self._eps = eps

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns the normalised ``x + residual``, and that sum: the next residual."""
        if residual is None:
            return rms_norm(x, self._weight, self._eps), x
        return add_rms_norm(x, residual, self._weight, self._eps)


class HeadNorm:
    """Normalises and rotates each head of queries and keys, which are adjacent in one tensor."""

    def __init__(
        self, query: Tensor, key: Tensor, heads: int, kv_heads: int, eps: float, offset: float
    ) -> None:
        weight = torch.stack([query] * heads + [key] * kv_heads)
        self._weight = (twice(weight) + offset).to(query.dtype)
        self._eps = eps

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``x`` [tokens, heads + kv_heads, head_dim] → the same shape."""
        return norm_rope(x, self._weight, self._eps, cos, sin)
