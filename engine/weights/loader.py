"""What a model is built from: tensors by name, and linear layers ready to run.

A model names its layers and their shapes; how their weights are stored (plain, quantized), on how many ranks they are
spread and whether adapters sit on them is decided here, so that model families know nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol

import torch
from torch import Tensor

from engine.layers.linear import Linear

Split = Literal["out", "in"]
"""How several ranks share a layer: each computes some of its outputs, or all of them from some of its inputs."""


class Checkpoint(Protocol):
    """A file format."""

    def __contains__(self, name: str) -> bool: ...

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor in the compute dtype and on the device. Raises ``UnsupportedModel`` if there is no such one."""
        ...

    def ignore(self, name: str) -> None:
        """A tensor that the model has no use for."""
        ...

    def finish(self) -> None:
        """Raises ``UnsupportedModel`` if a tensor was left over."""
        ...


class Loader:
    def __init__(self, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._checkpoint = checkpoint
        self.device = device
        self.dtype = dtype

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Raises ``UnsupportedModel`` if there is none of that name and shape."""
        return self._checkpoint.take(name, shape)

    def ignore(self, name: str) -> None:
        self._checkpoint.ignore(name)

    def finish(self) -> None:
        self._checkpoint.finish()

    def linear(
        self,
        parts: Mapping[str, int],
        in_features: int,
        *,
        bias: bool = False,
        split: Split | None = None,
    ) -> Linear:
        """Several layers that share their input become one product; ``parts`` maps their names to their widths.

        Raises ``UnsupportedModel`` if the weights do not fit.
        """
        weight = torch.cat([self.take(f"{name}.weight", (out, in_features)) for name, out in parts.items()])
        if not bias:
            return Linear(weight)
        return Linear(weight, torch.cat([self.take(f"{name}.bias", (out,)) for name, out in parts.items()]))
