"""Draw one token a row from temperature, top-k and top-p filtered logits, by inverting the cumulative distribution.

    p      = softmax(logits / temperature)
    kept   = the top_k largest, of these the fewest largest whose p (renormalised) sums to at least top_p
    token  = the first kept i (largest first) with  sum_{j <= i} p[j] > uniform * sum_{kept} p

A row depends on its own logits, parameters and ``uniform`` alone, so a seeded request draws the same tokens
whatever shares its batch.

Shapes: ``logits`` [rows, vocab]; ``temperature``, ``top_p`` float32 [rows]; ``top_k`` int64 [rows], vocab where
off; ``uniform`` float64 [rows] in [0, 1). Temperature 0 takes the first largest logit. Returns int64 [rows].
"""

from __future__ import annotations

import torch
from torch import Tensor

HEAD = 256
"""Candidates looked at before a whole row is sorted; the nucleus of a trained model nearly always fits."""


def sample_reference(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor
) -> Tensor:
    greedy = temperature <= 0
    if bool(greedy.all()):
        return logits.argmax(dim=-1)
    scaled = logits.float() / torch.where(greedy, 1.0, temperature)[:, None]
    probs = torch.softmax(scaled, dim=-1)
    vocab = logits.shape[1]
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    whole = (top_k >= vocab) & (top_p >= 1)
    # Where nothing is filtered, the order of tokens is free: skip the sort.
    for rows, draw in ((whole, _draw_unfiltered), (~whole, _draw_filtered)):
        index = rows.nonzero().squeeze(1)
        if len(index):
            tokens[index] = draw(probs[index], top_k[index], top_p[index], uniform[index])
    return torch.where(greedy, logits.argmax(dim=-1), tokens)


def _draw_unfiltered(probs: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    return _invert(probs.double(), uniform)


def _draw_filtered(probs: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    vocab = probs.shape[1]
    head = min(HEAD, vocab)
    largest, ids = probs.topk(head, dim=-1)
    # The head decides a row when top-k cuts within it, or when it already holds the whole nucleus.
    decided = (top_k <= head) | ((top_k >= vocab) & (largest.double().sum(-1) >= top_p))
    if head < vocab and not bool(decided.all()):
        drawn = torch.empty_like(top_k)
        for rows, (values, names) in ((decided, (largest, ids)), (~decided, _sorted(probs))):
            index = rows.nonzero().squeeze(1)
            if len(index):
                drawn[index] = _draw_sorted(
                    values[index], names[index], top_k[index], top_p[index], uniform[index]
                )
        return drawn
    return _draw_sorted(largest, ids, top_k, top_p, uniform)


def _sorted(probs: Tensor) -> tuple[Tensor, Tensor]:
    values, ids = probs.sort(dim=-1, descending=True, stable=True)
    return values, ids


def _draw_sorted(values: Tensor, ids: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    """``values`` [rows, n] descending, with the tokens they belong to in ``ids``."""
    rank = torch.arange(values.shape[1], device=values.device)
    wide = values.double()
    limited = top_k < values.shape[1]
    wide = torch.where(limited[:, None] & (rank >= top_k[:, None]), 0.0, wide)
    # Under top-k, top-p is a share of what top-k kept; otherwise of the whole distribution.
    mass = torch.where(limited, wide.sum(-1), 1.0)[:, None]
    before = wide.cumsum(-1) - wide
    outside = (before >= top_p.double()[:, None] * mass) & (rank > 0)
    return ids.gather(1, _invert(wide.masked_fill(outside, 0.0), uniform)[:, None]).squeeze(1)


def _invert(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first index whose cumulative weight passes ``uniform`` of the total; weights float64 [rows, n]."""
    total = weights.cumsum(-1)
    target = uniform[:, None] * total[:, -1:]
    index = torch.searchsorted(total, target, right=True).squeeze(1)
    # Rounding may carry the target onto the total itself: step back onto the last weight that is not zero.
    last = weights.shape[1] - 1 - (weights > 0).flip(-1).to(torch.int8).argmax(-1)
    return torch.minimum(index, last)


def sample(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, uniform: Tensor) -> Tensor:
    return sample_reference(logits, temperature, top_k, top_p, uniform)
