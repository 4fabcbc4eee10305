"""AWQ (Lin et al., https://arxiv.org/abs/2306.00978): inputs with large activations are scaled up before rounding.

The factor of an input is its mean activation to a power that is searched for, with or without the mean size of its
weights to what is left of one; what produces the input is divided by it, so that the product stays the same. A factor
is judged by what follows the layers that share it: attention, or the MLP. Then the ends of each group's range are
searched for, as clipping them may lose less, by the layer's own outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from engine.quantizer.blocks import Tensors
from engine.quantizer.grid import nearest

_POWERS = 10
_PATIENCE = 2
"""Powers in a row that gain nothing, after which larger ones are not tried."""
_STEP, _STEPS = 0.05, 6
"""Of the ends of a range, which go in so often."""
_ROWS = 1024
"""Outputs at a time."""


def search_scale(
    weights: Tensors,
    magnitude: Tensor,
    bits: int,
    size: int,
    error: Callable[[Tensors], float],
    tied: Callable[[Tensor], Tensor] = lambda factor: factor,
) -> Tensor:
    """Factors float32 [in] of ``weights`` [out, in], whose inputs have the mean absolute values ``magnitude`` [in].
    ``error``: of what follows, with rounded weights in their place; ``tied``: factors made alike where they must be."""

    def lost(factor: Tensor) -> float:
        return error(
            {name: _rounded(weight * factor, bits, size) / factor for name, weight in weights.items()}
        )

    best = torch.ones_like(magnitude)
    least = none = lost(best)
    for factors in (_factors(magnitude), _factors(magnitude, _relative(weights, size))):
        lowest, worse = none, 0
        for factor in map(tied, factors):
            found = lost(factor)
            if found < least:
                best, least = factor, found
            worse = 0 if found < lowest else worse + 1
            lowest = min(lowest, found)
            if worse == _PATIENCE:
                break
    return best


def _relative(weights: Tensors, size: int) -> Tensor:
    """Mean sizes of each input's weights, float32 [in], as shares of the largest in their groups."""
    inputs = next(iter(weights.values())).shape[1]
    grouped = torch.cat(list(weights.values())).view(-1, size).abs()
    return (grouped / grouped.amax(1, keepdim=True).clamp_min(1e-6)).view(-1, inputs).mean(0).clamp_min_(1e-4)


def _factors(magnitude: Tensor, relative: Tensor | None = None) -> Iterator[Tensor]:
    for step in range(1, _POWERS):
        power = step / _POWERS
        factor = magnitude.clamp_min(1e-4) ** power
        if relative is not None:
            factor = factor / relative ** (1 - power)
        yield factor / (factor.max() * factor.min()).sqrt()


def _rounded(weight: Tensor, bits: int, size: int) -> Tensor:
    return torch.cat(
        [nearest(rows.view(len(rows), -1, size), bits).view(rows.shape) for rows in weight.split(_ROWS)]
    )


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
    ends = [grouped.amin(-1, keepdim=True).clamp_(max=0), grouped.amax(-1, keepdim=True).clamp_(min=0)]
    least = torch.full(grouped.shape[:2], float("inf"))
    for end, whole in enumerate(list(ends)):
        for step in range(_STEPS + 1):
            tried = list(ends)
            tried[end] = whole * (1 - step * _STEP)
            cut = torch.maximum(torch.minimum(grouped, tried[1]), tried[0])
            by_group = (nearest(cut, bits) - grouped).transpose(0, 1)
            error = (by_group @ products).mul_(by_group).sum(-1).t()
            better = error < least
            ends[end] = torch.where(better[..., None], tried[end], ends[end])
            least = torch.where(better, error, least)
    return torch.maximum(torch.minimum(grouped, ends[1]), ends[0]).flatten(1)
