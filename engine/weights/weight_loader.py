"""A checkpoint's tensors as this rank has them: its part of each, plain or in codes, in the compute dtype."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, Protocol

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.parallel import SINGLE_RANK, TPGroup
from engine.weights.formats import check
from engine.weights.quantize import (
    GROUPS,
    ChannelWeight,
    Int4Weight,
    Int6Weight,
    regrouped,
    to_fp8,
    to_int4,
    to_int6,
    to_int8,
)
from engine.weights.quantized_format import QuantizedFormat, RawTensors
from kernels.native.linear import available

Split = Literal["out", "in"]
"""How several ranks share a layer: each computes some of its outputs, or all of them from some of its inputs."""

DIMENSION: Mapping[Split, int] = {"out": 0, "in": 1}
"""Of a weight [out, in]: the one that is cut."""

Weight = Tensor | Int4Weight | ChannelWeight | Int6Weight


class Checkpoint(Protocol):
    """A file format."""

    def __contains__(self, name: str) -> bool: ...

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor in the compute dtype and on the device. Raises ``UnsupportedModel`` if there is no such one."""
        ...

    def ignore(self, name: str) -> None:
        """A tensor that the model has no use for; ``*end``: all those whose names end so."""
        ...

    def finish(self) -> None:
        """Raises ``UnsupportedModel`` if a tensor was left over."""
        ...


class WeightLoader:
    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        *,
        tp: TPGroup = SINGLE_RANK,
        quantization: str | None = None,
        quantized_format: QuantizedFormat | None = None,
    ) -> None:
        """``quantization``: how plain weights are kept, one of ``METHODS``. ``stored``: how a quantized checkpoint has
        them.

        Raises ``UnsupportedModel`` for a method that this device or checkpoint does not allow.
        """
        check(quantization, quantized_format, device)
        self._checkpoint = checkpoint
        self._quantization = quantization
        self._format = quantized_format
        self.device = device
        self.dtype = dtype
        self.tp = tp

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Raises ``UnsupportedModel`` if there is none of that name and shape."""
        layer = name.removesuffix(".weight")
        if len(shape) == 2 and (weight := self._read(layer, *shape)) is not None:
            plain = weight.weight() if isinstance(weight, Int4Weight) else weight
            return finite(plain.to(self.device, self.dtype), name)
        return finite(self._checkpoint.take(name, shape), name)

    def ignore(self, name: str) -> None:
        self._checkpoint.ignore(name)

    def differs(self, name: str, weight: Tensor) -> bool:
        """Whether the checkpoint holds a plain tensor of that name which is not ``weight``."""
        return name in self and not torch.equal(self.take(name, tuple(weight.shape)), weight)

    def finish(self) -> None:
        """Raises ``UnsupportedModel`` if a tensor was left over that would change what is computed."""
        for end in self._format.unused if self._format else ():
            self._checkpoint.ignore(f"*{end}")
        self._checkpoint.finish()

    def weight(self, name: str, out_features: int, in_features: int, split: Split | None = None) -> Weight:
        """This rank's part of ``name.weight``."""
        whole: Weight | None = self._read(name, out_features, in_features)
        if whole is None:
            whole = finite(self._checkpoint.take(f"{name}.weight", (out_features, in_features)), name)
        elif isinstance(whole, Tensor):
            whole = finite(whole.to(self.device, self.dtype), name)
        elif isinstance(whole, Int4Weight):
            finite(whole.scale, name)
            finite(whole.offset, name)
        if split is None or self.tp.size == 1:
            return whole
        dimension, what = DIMENSION[split], f"parts of {name}"
        if split == "in" and isinstance(whole, Tensor) and not in_features % self.tp.size:
            # Whole rows share a scale, whichever ranks have their parts: so many ranks compute what one does.
            whole = self.quantized(whole)
        if isinstance(whole, Tensor):
            return self.tp.shard(whole, dimension, what)
        if isinstance(whole, ChannelWeight):
            return ChannelWeight(self.tp.shard(whole.codes, dimension, what).contiguous(), whole.scale)
        if not isinstance(whole, Int4Weight):
            raise TypeError(f"ranks do not share {type(whole).__name__}")
        if split == "in" and whole.order is not None:
            raise UnsupportedModel(
                f"Ranks cannot share {name}, whose inputs are reordered (desc_act): leave out --tensor-parallel."
            )
        if split == "in" and not in_features % self.tp.size:
            whole = regrouped(whole, math.gcd(whole.size, in_features // self.tp.size))
        cut = (self.tp.shard(part, dimension, what) for part in (whole.codes, whole.scale, whole.offset))
        return Int4Weight(*cut, whole.order)

    def bias(self, name: str, out_features: int, split: Split | None = None) -> Tensor:
        whole = self.take(f"{name}.bias", (out_features,))
        return self.tp.shard(whole, 0, f"outputs of {name}") if split == "out" else whole

    def quantized(self, weight: Tensor, head: bool = False) -> Weight:
        """A plain weight, as ``quantization`` says.

        With int4 the head, which decides on the token, has 6 bits where there is a product for them, else 8, as a layer
        has whose inputs are no whole groups, not even of 32. What 8-bit floats cannot multiply on a GPU, sizes that 16
        does not divide, stays plain.
        """
        method, whole_groups = self._quantization, weight.shape[1] % 32 == 0
        if method in GROUPS and not head and whole_groups:
            return to_int4(weight, math.gcd(GROUPS[method], weight.shape[1]))
        if method in GROUPS and head and whole_groups and weight.device.type == "cpu" and available():
            return to_int6(weight)
        if method == "int8" or method in GROUPS:
            return to_int8(weight)
        if method == "fp8" and not any(size % 16 for size in weight.shape):
            return to_fp8(weight)
        return weight

    def _read(self, name: str, out_features: int, in_features: int) -> Int4Weight | Tensor | None:
        """What a quantized checkpoint has under that name; ``None`` if it is plain."""
        reader = self._checkpoint
        if self._format is None or not isinstance(reader, RawTensors) or not self._format.holds(reader, name):
            return None
        return self._format.read(reader, name, out_features, in_features)


def finite(weight: Tensor, name: str) -> Tensor:
    """Raises ``UnsupportedModel`` for a weight that would make every token the same one."""
    # One sum tells nearly always, and takes a tenth of the time.
    if not bool(weight.sum().isfinite()) and not bool(weight.isfinite().all()):
        raise UnsupportedModel(
            f"The weights {name} hold infinities or NaN in {weight.dtype}: the checkpoint is damaged, or needs another "
            "--dtype."
        )
    return weight
