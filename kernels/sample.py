"""Draw one token a row from temperature, min-p, top-k and top-p filtered logits, by inverting the cumulative
distribution.

    p      = softmax(logits / temperature)
    kept   = those with p >= min_p * max(p), of these the top_k largest, of these the fewest largest whose p
             (renormalised) sums to at least top_p
    token  = the first kept i (largest first) with  sum_{j <= i} p[j] > uniform * sum_{kept} p

A logit of -inf bars its token: whatever the filters, only a token whose p is above 0 is drawn, as long as the row has
one. A row depends on its own logits, parameters and ``uniform`` alone, so a seeded request draws the same tokens
whatever shares its batch.

Shapes: ``logits`` [rows, vocab]; ``temperature``, ``top_p``, ``min_p`` float32 [rows], min_p 0 where off; ``top_k``
int64 [rows], vocab where off; ``uniform`` float64 [rows] in [0, 1). A temperature below 1e-5 takes the first largest
logit. Returns int64 [rows].
"""

from __future__ import annotations

import torch
from torch import Tensor

HEAD = 256
"""Candidates looked at before a whole row is sorted; the nucleus of a trained model nearly always fits."""

COLDEST = 1e-5
"""Below it float32 would overflow; and nothing but the largest logit would ever be drawn."""


def sample_reference(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    greedy = temperature < COLDEST
    if bool(greedy.all()):
        return logits.argmax(dim=-1)
    scaled = logits.float() / torch.where(greedy, 1.0, temperature)[:, None]
    probs = torch.softmax(scaled, dim=-1)
    vocab = logits.shape[1]
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    whole = (top_k >= vocab) & (top_p >= 1)
    # Where no order is asked for, that of the tokens is free: skip the sort.
    for rows, draw in ((whole, _draw_unsorted), (~whole, _draw_filtered)):
        index = rows.nonzero().squeeze(1)
        if len(index):
            tokens[index] = draw(probs[index], top_k[index], top_p[index], min_p[index], uniform[index])
    return torch.where(greedy, logits.argmax(dim=-1), tokens)


def _draw_unsorted(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    if bool((min_p > 0).any()):
        least = min_p[:, None] * probs.amax(-1, keepdim=True)
        probs = probs.masked_fill(probs < least, 0.0)
    return _invert(probs.double(), uniform)


def _draw_filtered(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    vocab = probs.shape[1]
    head = min(HEAD, vocab)
    largest, ids = probs.topk(head, dim=-1)
    limited = top_k < vocab
    # The head decides a row when top-k or min-p cuts within it, when nothing likely is left outside it, or when it
    # already holds the whole nucleus.
    decided = (top_k <= head) | (largest[:, -1] < min_p * largest[:, 0]) | (largest[:, -1] <= 0)
    decided |= ~limited & (min_p <= 0) & (largest.double().sum(-1) >= top_p)
    if head == vocab or bool(decided.all()):
        return _draw_sorted(largest, ids, top_k, top_p, min_p, uniform, limited)
    drawn = torch.empty_like(top_k)
    index = decided.nonzero().squeeze(1)
    if len(index):
        filters = (top_k[index], top_p[index], min_p[index], uniform[index], limited[index])
        drawn[index] = _draw_sorted(largest[index], ids[index], *filters)
    index = (~decided).nonzero().squeeze(1)
    values, names = probs[index].sort(dim=-1, descending=True, stable=True)
    filters = (top_k[index], top_p[index], min_p[index], uniform[index], limited[index])
    drawn[index] = _draw_sorted(values, names, *filters)
    return drawn


def _draw_sorted(
    values: Tensor,
    ids: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    uniform: Tensor,
    limited: Tensor,
) -> Tensor:
    """``values`` [rows, n] descending, with the tokens they belong to in ``ids``; ``limited``: where top-k is on."""
    rank = torch.arange(values.shape[1], device=values.device)
    cut = (values < min_p[:, None] * values[:, :1]) | (rank >= top_k[:, None])
    wide = values.double().masked_fill(cut, 0.0)
    # Top-p is a share of what min-p and top-k kept; where both are off, of the whole distribution.
    mass = torch.where(limited | (min_p > 0), wide.sum(-1), 1.0)[:, None]
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


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    return sample_reference(logits, temperature, top_k, top_p, min_p, uniform)
