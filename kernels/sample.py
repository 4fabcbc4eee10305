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
from torch.nn.functional import pad

HEADS = (256, 8192)
"""Candidates looked at before a whole row is sorted; the nucleus of a trained model nearly always fits the first."""

COLDEST = 1e-5
"""Below it float32 would overflow; and nothing but the largest logit would ever be drawn."""

_CHUNK = 128


def sample_reference(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    greedy = temperature < COLDEST
    if bool(greedy.all()):
        return logits.argmax(dim=-1)
    probs = torch.softmax(logits.float() / torch.where(greedy, 1.0, temperature)[:, None], dim=-1)
    # Where no order is asked for, that of the tokens is free: skip the sort.
    whole = ~greedy & (top_k >= logits.shape[1]) & (top_p >= 1)
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    for rows, draw in ((whole, _draw_unsorted), (~greedy & ~whole, _draw_filtered)):
        index = rows.nonzero().squeeze(1)
        if len(index):
            filters = (top_k[index], top_p[index], min_p[index], uniform[index])
            tokens[index] = draw(_rows(probs, index), *filters)
    if bool(greedy.any()):
        index = greedy.nonzero().squeeze(1)
        tokens[index] = logits[index].argmax(dim=-1)
    return tokens


def _rows(values: Tensor, index: Tensor) -> Tensor:
    """``values[index]``, without a copy where that is all of them."""
    return values if len(index) == len(values) else values[index]


def _draw_unsorted(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    if bool((min_p > 0).any()):
        least = min_p[:, None] * probs.amax(-1, keepdim=True)
        # As 0 and 1 in float32: on a CPU ten times as fast as a mask of bools.
        probs = torch.ge(probs, least, out=torch.empty_like(probs)).mul_(probs)
    # First the chunk, by the sums of all, then the token in it: float64 sums of a whole vocabulary take long.
    chunks = pad(probs, (0, -probs.shape[1] % _CHUNK)).unflatten(1, (-1, _CHUNK))
    sums = chunks.sum(-1).double()
    ends = sums.cumsum(-1)
    target = uniform[:, None] * ends[:, -1:]
    chunk = _find(sums, ends, target)[:, None]
    within = chunks.gather(1, chunk[:, :, None].expand(-1, -1, _CHUNK)).squeeze(1).double()
    rest = target - (ends - sums).gather(1, chunk)
    return chunk.squeeze(1) * _CHUNK + _find(within, within.cumsum(-1), rest.clamp(min=0.0))


def _draw_filtered(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor) -> Tensor:
    vocab = probs.shape[1]
    drawn = torch.empty_like(top_k)
    rows = torch.arange(len(probs), device=probs.device)
    for head in (*(head for head in HEADS if head < vocab), vocab):
        here = _rows(probs, rows)
        values, ids = here.topk(head) if head < vocab else here.sort(descending=True, stable=True)
        # The head decides a row when top-k or min-p cuts within it, when nothing likely is left outside it, or when
        # it already holds the whole nucleus.
        decided = (top_k <= head) | (values[:, -1] < min_p * values[:, 0]) | (values[:, -1] <= 0)
        decided |= (top_k >= vocab) & (min_p <= 0) & (values.double().sum(-1) >= top_p)
        if head == vocab:
            decided = torch.ones_like(decided)
        index = decided.nonzero().squeeze(1)
        if len(index):
            filters = (top_k[index], top_p[index], min_p[index], uniform[index])
            drawn[rows[index]] = _draw_sorted(_rows(values, index), _rows(ids, index), *filters, vocab)
        if len(index) == len(rows):
            break
        index = (~decided).nonzero().squeeze(1)
        rows, top_k, top_p, min_p, uniform = (x[index] for x in (rows, top_k, top_p, min_p, uniform))
    return drawn


def _draw_sorted(
    values: Tensor, ids: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor, vocab: int
) -> Tensor:
    """``values`` [rows, n] are the n largest of ``vocab``, descending, with their tokens in ``ids``."""
    rank = torch.arange(values.shape[1], device=values.device)
    cut = (values < min_p[:, None] * values[:, :1]) | (rank >= top_k[:, None])
    wide = values.double().masked_fill(cut, 0.0)
    # Top-p is a share of what min-p and top-k kept; where both are off, of the whole distribution.
    mass = torch.where((top_k < vocab) | (min_p > 0), wide.sum(-1), 1.0)[:, None]
    before = wide.cumsum(-1) - wide
    outside = (before >= top_p.double()[:, None] * mass) & (rank > 0)
    kept = wide.masked_fill(outside, 0.0)
    ends = kept.cumsum(-1)
    return ids.gather(1, _find(kept, ends, uniform[:, None] * ends[:, -1:])[:, None]).squeeze(1)


def _find(weights: Tensor, ends: Tensor, target: Tensor) -> Tensor:
    """The first index whose cumulative weight, in ``ends``, passes ``target`` [rows, 1]; float64 [rows, n]."""
    index = torch.searchsorted(ends, target, right=True).squeeze(1)
    # Rounding may carry the target onto the total itself: step back onto the last weight that is not zero.
    last = weights.shape[1] - 1 - (weights > 0).flip(-1).to(torch.int8).argmax(-1)
    return torch.minimum(index, last)


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    return sample_reference(logits, temperature, top_k, top_p, min_p, uniform)
