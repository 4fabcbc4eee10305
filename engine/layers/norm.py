"""RMS and layer normalisation, alone or with the residual sum, and the norms of queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.rms_norm import add_rms_norm, rms_norm, twice
from kernels.rope import norm_rope, rope


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


class LayerNorm:
    """As ``RMSNorm``, with the mean subtracted."""

    def __init__(self, weight: Tensor, eps: float, *, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias
        self._eps = eps

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        added = x if residual is None else x + residual
        return functional.layer_norm(added, self._weight.shape, self._weight, self._bias, self._eps), added


class NoNorm:
    """The residual sum alone, where a block normalises its outputs instead."""

    def __call__(self, x: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
        added = x if residual is None else x + residual
        return added, added


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


class RotatedHeadNorm(HeadNorm):
    """Rotates first, then normalises."""

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rotated = rope(x, cos, sin)
        return norm_rope(rotated, self._weight, self._eps, torch.ones_like(cos), torch.zeros_like(sin))


class JointHeadNorm:
    """Normalises all heads of the queries together, and all of the keys, and rotates them.

    ``query`` [heads * head_dim], ``key`` [kv_heads * head_dim]."""

    def __init__(self, query: Tensor, key: Tensor, heads: int, eps: float) -> None:
        self._query, self._key = twice(query), twice(key)
        self._heads = heads
        self._eps = eps

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``x`` [tokens, heads + kv_heads, head_dim] → the same shape."""
        query = rms_norm(x[:, : self._heads].flatten(1), self._query, self._eps)
        key = rms_norm(x[:, self._heads :].flatten(1), self._key, self._eps)
        return rope(torch.cat([query, key], 1).view(x.shape), cos, sin)
