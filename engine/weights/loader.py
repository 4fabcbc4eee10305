"""What a model is built from: tensors by name, and linear layers ready to run.

A model names its layers and their shapes; how their weights are stored (plain, quantized), on how many ranks they are
spread and whether adapters sit on them is decided here, so that model families know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

import torch
from torch import Tensor

from engine.layers.linear import Linear
from engine.worker.lora import AdaptedLinear, AdapterBank
from engine.worker.parallel import ALONE, Ranks, Reduced

Split = Literal["out", "in"]
"""How several ranks share a layer: each computes some of its outputs, or all of them from some of its inputs."""

_DIMENSION: Mapping[Split, int] = {"out": 0, "in": 1}
"""Of a weight [out, in]: the one that is cut."""

Product = Callable[[Tensor], Tensor]
"""[tokens, in] → [tokens, out]"""


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
    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        *,
        ranks: Ranks = ALONE,
        adapters: AdapterBank | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self.device = device
        self.dtype = dtype
        self.ranks = ranks
        self.adapters = adapters

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
    ) -> Product:
        """Several layers that share their input become one product; ``parts`` maps their names to their widths.

        Raises ``UnsupportedModel`` if the weights do not fit.
        """
        weight = torch.cat([self._weight(name, out, in_features, split) for name, out in parts.items()])
        biases = [self._bias(name, out, split) for name, out in parts.items()] if bias else []
        # What every rank has in full must be added once.
        once = split != "in" or self.ranks.rank == 0
        layer = Linear(weight, torch.cat(biases) if biases and once else None)
        return self._shared(layer, parts, in_features, split)

    def tied(self, name: str, weight: Tensor) -> Product:
        """The head whose weights are the embedding ``weight`` [vocab, hidden] of that name."""
        return Linear(weight)

    def _weight(self, name: str, out_features: int, in_features: int, split: Split | None) -> Tensor:
        """This rank's part."""
        whole = self.take(f"{name}.weight", (out_features, in_features))
        return whole if split is None else self.ranks.cut(whole, _DIMENSION[split], f"parts of {name}")

    def _bias(self, name: str, out_features: int, split: Split | None) -> Tensor:
        whole = self.take(f"{name}.bias", (out_features,))
        return self.ranks.cut(whole, 0, f"outputs of {name}") if split == "out" else whole

    def _shared(
        self, layer: Product, parts: Mapping[str, int], in_features: int, split: Split | None
    ) -> Product:
        """``layer`` is this rank's part: with adapters around it, and what the other ranks add."""
        if split is None:
            return layer
        # An expert sees rows of its own choice, and cannot tell whose they are.
        if self.adapters is not None and not any(".experts." in name for name in parts):
            layer = AdaptedLinear(
                layer, self.adapters, parts, in_features, _DIMENSION[split], self.device, self.dtype
            )
        return Reduced(layer, self.ranks) if split == "in" and self.ranks.size > 1 else layer
