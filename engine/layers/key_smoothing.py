"""Keys without what all of them have in common, and, for a cache with one scale a token, channels of like size.

Where the product that makes keys has a bias, a few channels of them are a hundred times as large as the others. Rounded
to 16 bits, and all the more with one scale for all channels, little is left of what tells keys apart. With a vector c
and a factor f for each channel of a head,

    q · k = Σ_i (q_i f_i) ((k_i - c_i) / f_i)  +  q · c,

and the last term is the same for all keys of a query: softmax does not see it. So keys, less c, are divided by f, and
queries are multiplied by f. That is exact in exact arithmetic, whatever c and f, and needs no calibration here:

- c is the mean of the bias, rotated, over the positions of the context. Pairs that turn slowly, which have the largest
  biases (in Qwen2.5 up to 240, other channels vary by 1), keep little of them; what turns fast has a mean of nearly 0.
- f makes up for what is left. It is the same for both channels of a pair, and a power of two: it rounds nothing.

The bias is added and c taken off in float32: what is rounded never had it.

Keys less their mean: SageAttention (https://arxiv.org/abs/2410.02367). Factors from keys to queries: SmoothAttention
of QServe (https://arxiv.org/abs/2405.04532), which takes them from calibration.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.layers.rope import Rope
from kernels.rope import rope_reference, shifted_rope

_SPREAD = 2.0
"""About what a key's channel varies by from one token to the next, in models at hand: biases below leave keys alone."""
_LARGEST = 64.0
"""Of the factors, so that queries stay within float16."""


@dataclass(frozen=True, slots=True)
class StoredKeys:
    positions: int
    """Of the context."""
    scaled: bool
    """One scale is for all of a token's keys of a head."""


class SmoothedRotation:
    """``rope(x + bias) * factors - shift``. All shapes [heads + kv_heads, head_dim], float32."""

    def __init__(self, bias: Tensor, factors: Tensor, shift: Tensor) -> None:
        self._bias = bias
        self._factors = factors
        self._shift = shift

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``x`` [tokens, heads + kv_heads, head_dim], without the keys' bias → the same shape."""
        return shifted_rope(x, self._bias, self._factors, self._shift, cos, sin)


def smoothed(
    bias: Tensor, heads: int, rope: Rope | None, keys: StoredKeys, *, shifts: bool
) -> SmoothedRotation | None:
    """The rotation of ``heads`` queries and of the keys that ``bias`` [kv_heads, head_dim] is of, which adds it;
    ``None`` where the bias is small.

    ``rope``: what it rotates by, in halves; ``None``: nothing. ``shifts``: whether a constant added to all scores of a
    query changes nothing, as with softmax alone.
    """
    if bias.abs().amax() < _SPREAD or not (shifts or keys.scaled):
        return None
    wide = bias.float()
    mean, power = wide, wide.square()
    if rope is not None:
        mean, power = _turned(wide, rope, keys.positions)
    if not shifts:
        mean = torch.zeros_like(wide)
    varying = power - _pairs(mean.square(), rope)
    steps = torch.log2(1 + varying.clamp_min(0) / _SPREAD**2) / 2
    factors = torch.exp2(steps.round()).clamp_max(_LARGEST)
    if not keys.scaled:
        factors = torch.ones_like(wide)
    queries = factors.repeat_interleave(heads // len(bias), 0)
    none = torch.zeros_like(queries)
    return SmoothedRotation(
        torch.cat([none, wide]), torch.cat([queries, 1 / factors]), torch.cat([none, mean / factors])
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
