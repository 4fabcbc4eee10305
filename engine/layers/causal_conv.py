"""A short convolution over time, each channel by itself, that continues where the last step ended."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.state_batch import StateBatch


class CausalConv:
    """out[t] = Σ_k weight[:, k] · x[t - (kernel - 1) + k] + bias; before a request's first token ``x`` is zero.

    ``weight`` [channels, kernel]. A row's result does not depend on the batch, nor on how a prompt is cut.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight.float().t().contiguous()
        self._bias = bias

    def __call__(self, x: Tensor, batch: StateBatch, states: Tensor) -> Tensor:
        """``x`` [tokens, channels] → the same shape. ``states`` [slots, kernel - 1, channels]: the inputs before."""
        taps, last = batch.taps(len(self._weight) - 1)
        table = torch.cat([batch.all.read(states).flatten(0, 1), x])
        states[batch.all.slots] = table[last]
        out = table[taps[0]] * self._weight[0]
        for rows, weight in zip(taps[1:], self._weight[1:], strict=True):
            # Two operations: what a library makes of one depends on where in a vector a number is.
            out += table[rows] * weight
        if self._bias is not None:
            out += self._bias
        return out.to(x.dtype)
