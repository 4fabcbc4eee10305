"""Hidden states of a batch to one vector a text, as sentence-transformers' modules behind the transformer do it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from engine.errors import UnsupportedModel
from engine.layers.linear import Linear
from engine.models.registry import read_config
from engine.pooling.parts import ACTIVATIONS
from engine.pooling.spec import PoolingSpec
from engine.pooling.texts import Texts
from engine.weights.safetensors import SafetensorsReader


class Pooler:
    """Computes in float32. Raises ``ModelUnavailable`` or ``UnsupportedModel``."""

    def __init__(self, spec: PoolingSpec, folder: Path, width: int, device: torch.device) -> None:
        self._modes = spec.modes
        self._after: list[_Dense | None] = []
        self.width = width * len(spec.modes)
        """Dimensions of a vector."""
        for at in spec.after:
            dense = _Dense(folder / at, self.width, device) if at else None
            self._after.append(dense)
            self.width = dense.width if dense else self.width

    def __call__(self, hidden: Tensor, texts: Texts, sizes: Sequence[int | None]) -> list[Tensor]:
        """``sizes``: of each text's vector; ``None``: all of it."""
        parts = hidden.float().split_with_sizes(texts.lengths)
        x = torch.stack([torch.cat([_pool(part, mode) for mode in self._modes]) for part in parts])
        for step in self._after:
            x = functional.normalize(x, dim=1) if step is None else step(x)
        found = []
        for vector, size in zip(x, sizes, strict=True):
            if size is not None and size < self.width:
                vector = vector[:size]
                vector = functional.normalize(vector, dim=0) if None in self._after else vector
            found.append(vector)
        return found


class _Dense:
    """A module ``Dense``: a linear layer and an activation."""

    def __init__(self, folder: Path, width: int, device: torch.device) -> None:
        config = read_config(folder)
        inputs, self.width = config.get("in_features"), int(config.get("out_features") or 0)
        if inputs != width or self.width < 1:
            raise UnsupportedModel(
                f"{folder / 'config.json'} has in_features {inputs}: it gets vectors of {width}."
            )
        name = str(config.get("activation_function") or "Tanh").rpartition(".")[2].lower()
        if name != "identity" and name not in ACTIVATIONS:
            raise UnsupportedModel(f"The activation {name} of {folder} is not supported.")
        if config.get("use_residual"):
            raise UnsupportedModel(f"use_residual of {folder} is not supported.")
        self._activation = ACTIVATIONS.get(name)
        reader = SafetensorsReader(folder, device, torch.float32)
        weight = reader.take("linear.weight", (self.width, width))
        bias = reader.take("linear.bias", (self.width,)) if config.get("bias", True) else None
        self._linear = Linear(weight, bias)
        reader.finish()

    def __call__(self, x: Tensor) -> Tensor:
        x = self._linear(x)
        return x if self._activation is None else self._activation(x)


def _pool(x: Tensor, mode: str) -> Tensor:
    match mode:
        case "cls":
            return x[0]
        case "lasttoken":
            return x[-1]
        case "max":
            return x.amax(0)
        case "mean_sqrt_len_tokens":
            return x.sum(0) / len(x) ** 0.5
        case "weightedmean":
            by_place = torch.arange(1, len(x) + 1, device=x.device, dtype=x.dtype)
            return (by_place / by_place.sum()) @ x
    return x.mean(0)
