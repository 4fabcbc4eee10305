"""State-space duality (https://arxiv.org/abs/2405.21060): a matrix of each head that forgets and is added to.

    S ← exp(g) · S + k ⊗ v;    out = qᵀ S

In Mamba 2's words k is B, q is C, v is Δ x and g is Δ A. ``step`` takes a token of each of several requests, ``scan``
many tokens of one, in pieces. All in float32: ``q`` and ``k`` [n, heads, state], ``v`` [n, heads, head_dim], ``g``
[n, heads].
"""

from __future__ import annotations

import torch
from torch import Tensor

PIECE = 64


def step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor) -> Tensor:
    """[n, heads, head_dim]. Changes ``state`` [n, heads, state, head_dim], of which each token has its own."""
    state.mul_(g.exp()[..., None, None])
    matrices = state.flatten(0, 1).baddbmm_(k.flatten(0, 1)[..., None], v.flatten(0, 1)[:, None])
    return torch.bmm(q.flatten(0, 1)[:, None], matrices).view(v.shape)


def scan(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor) -> Tensor:
    """[n, heads, head_dim], of tokens that follow one another. Changes ``state`` [heads, state, head_dim]."""
    parts = (part.transpose(0, 1).split(PIECE, 1) for part in (q, k, v, g))
    return torch.cat([_piece(*piece, state) for piece in zip(*parts, strict=True)], 1).transpose(0, 1)


def _piece(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor) -> Tensor:
    """As ``scan``, with heads before tokens."""
    total, left = decays(g)
    since = total.exp()[..., None]
    out = (q * since) @ state + ((q @ k.transpose(1, 2)) * left) @ v
    rest = (total[:, -1:] - total).exp()[..., None]
    state.mul_(since[:, -1:]).baddbmm_((k * rest).transpose(1, 2), v)
    return out


def decays(g: Tensor) -> tuple[Tensor, Tensor]:
    """Of ``g`` [heads, tokens]: its sum up to each token, and what is left of each token (column) by those after it
    (rows) [heads, tokens, tokens]."""
    total = g.cumsum(1)
    between = total[:, :, None] - total[:, None, :]
    later = torch.ones_like(between, dtype=torch.bool).triu_(1)
    return total, between.masked_fill(later, float("-inf")).exp_()
