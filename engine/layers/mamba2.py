"""Mamba 2, in place of attention (https://arxiv.org/abs/2405.21060)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from engine.layers import recurrence, state_space
from engine.layers.causal_conv import CausalConv
from engine.layers.product import Product
from engine.state_batch import StateBatch
from engine.state_cache import LayerState

_Inputs = tuple[Tensor, Tensor, Tensor, Tensor]


class Mamba2:
    """``x`` [tokens, hidden] → the same shape.

    ``into``: to gates, to what goes through ``conv`` (values of ``heads``, then B and C of ``groups`` of heads), and to
    each head's Δ. ``decay``, ``rate_bias`` and ``skip`` float32 [heads]: A (negative), what is added to Δ, and D.
    ``norm`` [heads * head_dim], of each group.

    ``invariant``: token by token, so that a token's result does not depend on the batch nor on how a prompt is cut.
    """

    def __init__(
        self,
        into: Product,
        conv: CausalConv,
        out: Product,
        *,
        heads: int,
        head_dim: int,
        groups: int,
        state: int,
        decay: Tensor,
        rate_bias: Tensor,
        skip: Tensor,
        norm: Tensor,
        eps: float,
        invariant: bool = False,
    ) -> None:
        self._into = into
        self._conv = conv
        self._out = out
        self._heads, self._head_dim = heads, head_dim
        self._groups, self._state = groups, state
        self._decay = decay
        self._rate_bias = rate_bias
        self._skip = skip[:, None]
        self._norm = norm.float()
        self._eps = eps
        self._invariant = invariant

    def __call__(
        self, x: Tensor, rotation: tuple[Tensor, ...], batch: StateBatch, state: LayerState
    ) -> Tensor:
        inputs, matrices = state
        inner, made = self._heads * self._head_dim, self._into(x)
        gate, mixed, rates = made.split([inner, made.shape[1] - inner - self._heads, self._heads], 1)
        mixed = self._conv(mixed, batch, inputs)
        if self._invariant:
            out = recurrence.one_by_one(batch, matrices, (mixed, rates, gate), self._one)
        else:
            out = self._at_once(mixed, rates, gate, batch, matrices)
        return self._out(out.to(x.dtype))

    def _at_once(
        self, mixed: Tensor, rates: Tensor, gate: Tensor, batch: StateBatch, matrices: Tensor
    ) -> Tensor:
        value, inputs = self._inputs(mixed, rates)
        read = torch.empty_like(value)
        recurrence.at_once(batch, matrices, inputs, read, step=state_space.step, scan=state_space.scan)
        return self._gated(read + self._skip * value, gate)

    def _one(self, mixed: Tensor, rates: Tensor, gate: Tensor, matrices: Tensor) -> Tensor:
        value, inputs = self._inputs(mixed, rates)
        return self._gated(state_space.step(*inputs, matrices) + self._skip * value, gate)

    def _inputs(self, mixed: Tensor, rates: Tensor) -> tuple[Tensor, _Inputs]:
        """The values, and what ``state_space`` takes."""
        inner, width = self._heads * self._head_dim, self._groups * self._state
        value, k, q = functional.silu(mixed.float()).split([inner, width, width], 1)
        value = value.reshape(-1, self._heads, self._head_dim)
        k, q = (
            part.view(-1, self._groups, self._state).repeat_interleave(self._heads // self._groups, 1)
            for part in (k, q)
        )
        rate = functional.softplus(rates.float() + self._rate_bias)
        return value, (q, k, value * rate[..., None], self._decay * rate)

    def _gated(self, read: Tensor, gate: Tensor) -> Tensor:
        read = (read.flatten(1) * functional.silu(gate.float())).unflatten(1, (self._groups, -1))
        read = read * torch.rsqrt(read.square().mean(-1, keepdim=True) + self._eps)
        return read.flatten(1) * self._norm
