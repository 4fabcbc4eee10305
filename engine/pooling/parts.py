"""What encoders are made of: layer norms, activations, and tensors by whatever prefix a checkpoint has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from torch import Tensor
from torch.nn import functional

from engine.errors import UnsupportedModel
from engine.models.config import Raw
from engine.pooling.texts import Texts
from engine.weights.weight_loader import WeightLoader

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": Tensor.tanh,
}
"""By their names in config.json."""


class Encoder(Protocol):
    width: int
    """Of a hidden state."""
    vocab_size: int
    max_positions: int

    def forward(self, texts: Texts) -> Tensor:
        """Hidden states [tokens, width]."""
        ...


class LayerNorm:
    def __init__(
        self, weights: WeightLoader, name: str, width: int, eps: float, *, bias: bool = True
    ) -> None:
        self._weight = weights.take(f"{name}.weight", (width,))
        self._bias = weights.take(f"{name}.bias", (width,)) if bias else None
        self._eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self._weight.shape, self._weight, self._bias, self._eps)


def activation(raw: Raw, key: str) -> Callable[[Tensor], Tensor]:
    name = raw.get(key) or "gelu"
    if name not in ACTIVATIONS:
        raise UnsupportedModel(f"{key} {name!r} is not supported; these are: {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]


def prefix_of(weights: WeightLoader, tensor: str, *prefixes: str) -> str:
    """The prefix by which the checkpoint has ``tensor``: a model has none, its variants with a head have one."""
    return next((prefix for prefix in prefixes if f"{prefix}{tensor}" in weights), prefixes[0])
