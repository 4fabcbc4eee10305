"""Which experts take which tokens in a mixture of experts (https://arxiv.org/abs/2401.04088).

    p[t]      = softmax(scores[t])
    out[t]    = Σ_e∈top(t) w[t, e] * expert_e(x[t]),    w[t, e] = p[t, e], or p[t, e] / Σ_top(t) p[t]

Shapes: ``scores`` [tokens, experts]. ``route`` returns the chosen experts int64 [tokens, top] and their weights
[tokens, top] in the scores' dtype; the softmax is taken in float32. ``group`` turns the choice round: for each expert
that is used, in rising order, its tokens' rows and where among a row's ``top`` it stands, both int64 [n].
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def route_reference(scores: Tensor, top: int, normalise: bool) -> tuple[Tensor, Tensor]:
    weights, experts = torch.softmax(scores, dim=-1, dtype=torch.float32).topk(top, dim=-1)
    if normalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return experts, weights.to(scores.dtype)


def route(scores: Tensor, top: int, normalise: bool) -> tuple[Tensor, Tensor]:
    return route_reference(scores, top, normalise)


def group(experts: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """(expert, rows, places)"""
    top = experts.shape[1]
    owners, order = experts.flatten().sort(stable=True)
    used, counts = torch.unique_consecutive(owners, return_counts=True)
    for expert, chosen in zip(used.tolist(), order.split(counts.tolist()), strict=True):
        yield expert, chosen // top, chosen % top
