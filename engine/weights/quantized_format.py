"""The interface of formats of quantized checkpoints."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from engine.errors import UnsupportedModel
from engine.weights.quantize import ChannelWeight, Float8Weight, Int4Weight, Int6Weight


@runtime_checkable
class RawTensors(Protocol):
    """A checkpoint's tensors as stored, on the CPU."""

    def __contains__(self, name: str) -> bool: ...

    def raw(self, name: str) -> Tensor: ...

    def ignore(self, name: str) -> None: ...


class QuantizedFormat(Protocol):
    """A format of quantized weights."""

    name: str
    unused: tuple[str, ...]
    """Suffixes of tensors of the format that are not used here."""

    def holds(self, tensors: RawTensors, name: str) -> bool:
        """Whether the layer of that name is quantized; some layers of a checkpoint may be plain."""
        ...

    def read(
        self, tensors: RawTensors, name: str, out_features: int, in_features: int
    ) -> Int4Weight | ChannelWeight | Float8Weight | Int6Weight | Tensor:
        """Raises ``UnsupportedModel`` if a tensor has the wrong shape."""
        ...


def group_size(size: int, method: str) -> int | None:
    """``None``: one group for a whole row. Raises ``UnsupportedModel``."""
    if size == -1:
        return None
    if size <= 0 or size % 32:
        raise UnsupportedModel(
            f"{method} weights in groups of {size} are not supported; multiples of 32 and -1 are."
        )
    return size


def pick(tensors: RawTensors, name: str, shape: tuple[int, ...]) -> Tensor:
    """Raises ``UnsupportedModel`` if the stored tensor has another shape."""
    tensor = tensors.raw(name)
    if tuple(tensor.shape) != shape:
        raise UnsupportedModel(
            f"The tensor {name} has the shape {tuple(tensor.shape)}, but config.json calls for {shape}."
        )
    return tensor
