"""Keys as a cache with one scale a token holds them best: without what all have in common, channels of like size.

Where the product that makes keys has a bias, a few channels of them are a hundred times as large as the others, and
rounding with one scale leaves little of these. With a vector c and a factor f for each channel of a head,

    q · k = Σ_i (q_i f_i) ((k_i - c_i) / f_i)  +  q · c,

and the last term is the same for all keys of a query: softmax does not see it. So queries are multiplied by f, and
keys, less c, divided by f. That is exact in exact arithmetic, whatever c and f, and needs no calibration here:

- c is the mean of the bias, rotated, over the positions of the context. Pairs that turn slowly, which have the largest
  biases (in Qwen2.5 up to 240, other channels vary by 1), keep little of them; what turns fast has a mean of nearly 0.
- f makes up for what is left. It is the same for both channels of a pair, and a power of two: it rounds nothing.

Keys less their mean: SageAttention (https://arxiv.org/abs/2410.02367). Factors from keys to queries: SmoothAttention
of QServe (https://arxiv.org/abs/2405.04532), which takes them from calibration.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.layers.rope import Rope
from kernels.rope import rope_reference

_SPREAD = 2.0
"""About what a key's channel varies by from one token to the next, in models at hand: biases below leave keys alone."""
_LARGEST = 64.0
"""Of the factors, so that queries stay within float16."""


class SmoothedRotation:
    """``rotate``, then ``x * factors - shift``. All shapes [heads + kv_heads, head_dim]."""

    def __init__(self, rotate: Callable[..., Tensor], factors: Tensor, shift: Tensor) -> None:
        self._rotate = rotate
        self._factors = factors
        self._added = -shift

    def __call__(self, x: Tensor, *rotation: Tensor) -> Tensor:
        """``x`` [tokens, heads + kv_heads, head_dim] → the same shape."""
        return torch.addcmul(self._added, self._rotate(x, *rotation), self._factors)


def smoothed(
    rotate: Callable[..., Tensor],
    bias: Tensor,
    heads: int,
    rope: Rope | None,
    length: int,
    *,
    shifts: bool,
) -> Callable[..., Tensor]:
    """``rotate`` of ``heads`` queries and the keys that ``bias`` [kv_heads, head_dim] is of, for a cache with one scale
    a token; as it is where the bias is small.

    ``rope``: what it rotates by, in halves; ``None``: nothing. ``length``: of the context. ``shifts``: whether a
    constant added to all scores of a query changes nothing, as with softmax alone.
    """
    if bias.abs().amax() < _SPREAD:
        return rotate
    wide = bias.float()
    mean, power = wide, wide.square()
    if rope is not None:
        mean, power = _turned(wide, rope, length)
    if not shifts:
        mean = torch.zeros_like(wide)
    varying = power - _pairs(mean.square(), rope)
    steps = torch.log2(1 + varying.clamp_min(0) / _SPREAD**2) / 2
    factors = torch.exp2(steps.round()).clamp_max(_LARGEST)
    queries = factors.repeat_interleave(heads // len(bias), 0)
    # Rounded before it is divided, which is exact then.
    shift = mean.to(bias.dtype) / factors.to(bias.dtype)
    return SmoothedRotation(
        rotate,
        torch.cat([queries, 1 / factors]).to(bias.dtype),
        torch.cat([torch.zeros_like(queries, dtype=bias.dtype), shift]),
    )


def _turned(bias: Tensor, rope: Rope, length: int) -> tuple[Tensor, Tensor]:
    """The mean of ``bias``, rotated to each of ``length`` positions, and the mean of its squares."""
    scale = rope.attention_scaling(length)
    angles = rope.frequencies(length).double().to(bias.device) * length / 2
    # The mean of points on an arc lies at its middle, and nearer to the centre the longer the arc.
    inward = torch.sinc(angles / torch.pi) * scale
    cos, sin = ((turn * inward).float().repeat(2)[None, None] for turn in (angles.cos(), angles.sin()))
    power = bias.square()
    power[:, : rope.dim] *= scale**2
    return rope_reference(bias[None], cos, sin)[0], _pairs(power, rope)


def _pairs(x: Tensor, rope: Rope | None) -> Tensor:
    """The mean of each pair in place of both; what is not rotated stays."""
    if rope is None:
        return x
    halves = x[:, : rope.dim].unflatten(1, (2, -1)).mean(1)
    return torch.cat([halves, halves, x[:, rope.dim :]], 1)
