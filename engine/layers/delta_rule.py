"""The gated delta rule (https://arxiv.org/abs/2412.06464): a matrix of each head that tokens write to and read from.

    S ← exp(g) · S;    S ← S + k ⊗ β (v - kᵀ S);    out = qᵀ S

For each token what the matrix has for its key is replaced by its value, as far as β says, after all was forgotten a
little. ``step`` is that, for a token of several requests. ``scan`` is the same for many tokens of one, in pieces whose
corrections to each other are solved at once (the UT transform of https://arxiv.org/abs/2406.06484).

All in float32: ``q`` and ``k`` [n, heads, key_dim], ``v`` [n, heads, value_dim], ``g`` and ``beta`` [n, heads].
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.layers.state_space import PIECE, decays


def step(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """[n, heads, value_dim]. Changes ``state`` [n, heads, key_dim, value_dim], of which each token has its own."""
    decay = g.exp()[..., None, None]
    seen = (torch.stack([k, q], 2) @ state) * decay
    change = (v - seen[:, :, 0]) * beta[..., None]
    state.mul_(decay)
    state.flatten(0, 1).baddbmm_(k.flatten(0, 1)[..., None], change.flatten(0, 1)[:, None])
    return seen[:, :, 1] + (q * k).sum(-1, keepdim=True) * change


def scan(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """[n, heads, value_dim], of tokens that follow one another. Changes ``state`` [heads, key_dim, value_dim]."""
    parts = (part.transpose(0, 1).split(PIECE, 1) for part in (q, k, v, g, beta))
    return torch.cat([_piece(*piece, state) for piece in zip(*parts, strict=True)], 1).transpose(0, 1)


def _piece(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """As ``scan``, with heads before tokens."""
    total, left = decays(g)
    written, since = k * beta[..., None], total.exp()[..., None]
    system = (written @ k.transpose(1, 2)) * left
    wanted = v * beta[..., None] - (written * since) @ state
    change = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    out = (q * since) @ state + ((q @ k.transpose(1, 2)) * left) @ change
    rest = (total[:, -1:] - total).exp()[..., None]
    state.mul_(since[:, -1:]).baddbmm_((k * rest).transpose(1, 2), change)
    return out
