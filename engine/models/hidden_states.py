"""Hidden states between a decoder's layers, for draft heads that read them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class HiddenStates:
    """Filled by one forward pass. ``layers``: the layers whose input is kept; the number of layers means the last
    one's output, before the final norm."""

    __slots__ = ("_states", "last", "layers")

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = tuple(layers)
        self._states: dict[int, Tensor] = {}
        self.last: Tensor | None = None
        """What the LM head reads [tokens, hidden]."""

    def keep(self, layer: int, x: Tensor, residual: Tensor | None) -> None:
        if layer in self.layers:
            self._states[layer] = x if residual is None else x + residual

    def adopt(self, other: HiddenStates) -> None:
        """What another pass, over the same layers, has filled."""
        self._states = other._states

    def rows(self, index: Tensor) -> Tensor:
        """[len(index), layers * hidden]"""
        return torch.cat([self._states[layer][index] for layer in self.layers], -1)
