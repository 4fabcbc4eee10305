"""The gated delta net of Qwen3-Next, in place of attention (https://arxiv.org/abs/2412.06464)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from engine.layers import delta_rule, recurrence
from engine.layers.causal_conv import CausalConv
from engine.layers.product import Product
from engine.state_batch import StateBatch
from engine.state_cache import LayerState

_EPS = 1e-6
"""Of the queries' and keys' length."""
_Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class GatedDeltaNet:
    """``x`` [tokens, hidden] → the same shape.

    ``into``: to queries and keys of ``key_heads``, values and gates of ``value_heads``, one after the other; all but
    the gates go through ``conv``. ``rates``: to how much is written and forgotten, of each value head. ``decay`` and
    ``rate_bias`` float32 [value_heads]: the factor on the latter (negative), and what is added to it before. ``norm``
    [value_dim].

    ``invariant``: token by token, so that a token's result does not depend on the batch nor on how a prompt is cut.
    """

    def __init__(
        self,
        into: Product,
        rates: Product,
        conv: CausalConv,
        out: Product,
        *,
        key_heads: int,
        key_dim: int,
        value_heads: int,
        value_dim: int,
        decay: Tensor,
        rate_bias: Tensor,
        norm: Tensor,
        eps: float,
        invariant: bool = False,
    ) -> None:
        self._into = into
        self._rates = rates
        self._conv = conv
        self._out = out
        self._keys = key_heads, key_dim
        self._values = value_heads, value_dim
        self._decay = decay
        self._rate_bias = rate_bias
        self._norm = norm.float()
        self._eps = eps
        self._invariant = invariant

    def __call__(
        self, x: Tensor, rotation: tuple[Tensor, ...], batch: StateBatch, state: LayerState
    ) -> Tensor:
        inputs, matrices = state
        gates = self._values[0] * self._values[1]
        mixed, gate = (made := self._into(x)).split([made.shape[1] - gates, gates], 1)
        parts = self._conv(mixed, batch, inputs), self._rates(x), gate
        if self._invariant:
            out = recurrence.one_by_one(batch, matrices, parts, self._one)
        else:
            out = self._at_once(*parts, batch, matrices)
        return self._out(out.to(x.dtype))

    def _at_once(
        self, mixed: Tensor, rates: Tensor, gate: Tensor, batch: StateBatch, matrices: Tensor
    ) -> Tensor:
        inputs = self._inputs(mixed, rates)
        read = torch.empty_like(inputs[2])
        recurrence.at_once(batch, matrices, inputs, read, step=delta_rule.step, scan=delta_rule.scan)
        return self._gated(read, gate)

    def _one(self, mixed: Tensor, rates: Tensor, gate: Tensor, matrices: Tensor) -> Tensor:
        return self._gated(delta_rule.step(*self._inputs(mixed, rates), matrices), gate)

    def _inputs(self, mixed: Tensor, rates: Tensor) -> _Inputs:
        (key_heads, key_dim), (heads, dim) = self._keys, self._values
        active = functional.silu(mixed.float())
        q, k, v = active.split([key_heads * key_dim, key_heads * key_dim, heads * dim], 1)
        # Each head of keys is read and written by so many of values.
        q, k = (
            _unit(part.view(-1, key_heads, key_dim)).repeat_interleave(heads // key_heads, 1)
            for part in (q, k)
        )
        write, forget = rates.float().split(heads, 1)
        g = self._decay * functional.softplus(forget + self._rate_bias)
        return q * key_dim**-0.5, k, v.reshape(-1, heads, dim), g, write.sigmoid()

    def _gated(self, read: Tensor, gate: Tensor) -> Tensor:
        read = read * torch.rsqrt(read.square().mean(-1, keepdim=True) + self._eps) * self._norm
        return read.flatten(1) * functional.silu(gate.float())


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _EPS)
