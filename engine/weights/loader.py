"""What a model is built from: tensors by name, and linear layers ready to run.

A model names its layers and their shapes; how their weights are stored (plain, quantized), on how many ranks they are
spread and whether adapters sit on them is decided here, so that model families know nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.layers.linear import Linear
from engine.layers.native import Int6Linear
from engine.layers.quantized import Fp8Linear, Int4Linear, Int8Linear, Joined
from engine.weights.quantize import (
    GROUPS,
    Channels,
    Groups,
    Sixes,
    join,
    regrouped,
    same_inputs,
    to_fp8,
    to_int4,
    to_int6,
    to_int8,
)
from engine.weights.stored import RawTensors, Stored, check
from engine.worker.lora import AdaptedLinear, AdapterBank
from engine.worker.parallel import ALONE, Ranks, Reduced
from kernels.native.linear import available

Split = Literal["out", "in"]
"""How several ranks share a layer: each computes some of its outputs, or all of them from some of its inputs."""

_DIMENSION: Mapping[Split, int] = {"out": 0, "in": 1}
"""Of a weight [out, in]: the one that is cut."""

Weight = Tensor | Groups | Channels | Sixes

Product = Callable[[Tensor], Tensor]
"""[tokens, in] → [tokens, out]"""


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


class Loader:
    def __init__(
        self,
        checkpoint: Checkpoint,
        device: torch.device,
        dtype: torch.dtype,
        *,
        ranks: Ranks = ALONE,
        adapters: AdapterBank | None = None,
        quantization: str | None = None,
        stored: Stored | None = None,
        invariant: bool = False,
    ) -> None:
        """``quantization``: how plain weights are kept, one of ``METHODS``. ``stored``: how a quantized checkpoint has
        them. ``invariant``: a row's result must not depend on the number of rows, at the price of slower prompts.

        Raises ``UnsupportedModel`` for a method that this device or checkpoint does not allow.
        """
        check(quantization, stored, device)
        self._checkpoint = checkpoint
        self._quantization = quantization
        self._stored = stored
        self.invariant = invariant
        self.device = device
        self.dtype = dtype
        self.ranks = ranks
        self.adapters = adapters

    def __contains__(self, name: str) -> bool:
        return name in self._checkpoint

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Raises ``UnsupportedModel`` if there is none of that name and shape."""
        layer = name.removesuffix(".weight")
        if len(shape) == 2 and (weight := self._read(layer, *shape)) is not None:
            plain = weight.weight() if isinstance(weight, Groups) else weight
            return finite(plain.to(self.device, self.dtype), name)
        return finite(self._checkpoint.take(name, shape), name)

    def ignore(self, name: str) -> None:
        self._checkpoint.ignore(name)

    def differs(self, name: str, weight: Tensor) -> bool:
        """Whether the checkpoint holds a plain tensor of that name which is not ``weight``."""
        return name in self and not torch.equal(self.take(name, tuple(weight.shape)), weight)

    def finish(self) -> None:
        """Raises ``UnsupportedModel`` if a tensor was left over that would change what is computed."""
        for end in self._stored.unused if self._stored else ():
            self._checkpoint.ignore(f"*{end}")
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
        weights = [self._weight(name, out, in_features, split) for name, out in parts.items()]
        biases = [self._bias(name, out, split) for name, out in parts.items()] if bias else []
        # What every rank has in full must be added once.
        once = split != "in" or self.ranks.rank == 0
        head = any(name.endswith("lm_head") for name in parts)
        layer = self._product(weights, torch.cat(biases) if biases and once else None, head)
        return self._shared(layer, parts, in_features, split)

    def tied(self, name: str, weight: Tensor) -> Product:
        """The head whose weights are the embedding ``weight`` [vocab, hidden] of that name."""
        return self._plain(weight, None, head=True)

    def _product(self, weights: Sequence[Weight], bias: Tensor | None, head: bool) -> Product:
        plain = [weight for weight in weights if isinstance(weight, Tensor)]
        grouped = [weight for weight in weights if isinstance(weight, Groups)]
        if len(plain) == len(weights):
            return self._plain(torch.cat(plain), bias, head)
        if len(grouped) == len(weights) and same_inputs(grouped):
            return self._grouped(join(grouped), bias)
        if len(weights) == 1:
            return self._kept(weights[0], bias)
        widths = [len(weight) if isinstance(weight, Tensor) else len(weight.codes) for weight in weights]
        biases = [None] * len(weights) if bias is None else bias.split(widths)
        return Joined(
            [self._product([weight], part, head) for weight, part in zip(weights, biases, strict=True)]
        )

    def _plain(self, weight: Tensor, bias: Tensor | None, head: bool) -> Product:
        return self._kept(self._quantized(weight, head), bias)

    def _quantized(self, weight: Tensor, head: bool = False) -> Weight:
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

    def _kept(self, weight: Weight, bias: Tensor | None) -> Product:
        match weight:
            case Groups():
                return self._grouped(weight, bias)
            case Sixes():
                return Int6Linear(weight, bias)
            case Channels() if weight.codes.dtype == torch.int8:
                return Int8Linear(weight, bias, invariant=self.invariant)
            case Channels():
                return Fp8Linear(weight, bias, invariant=self.invariant)
        return Linear(weight, bias, invariant=self.invariant)

    def _grouped(self, weight: Groups, bias: Tensor | None) -> Product:
        weight = weight.to(self.device)
        if weight.size % 32:
            return Linear(weight.weight().to(self.dtype), bias, invariant=self.invariant)
        return Int4Linear(weight, bias, invariant=self.invariant)

    def _read(self, name: str, out_features: int, in_features: int) -> Groups | Tensor | None:
        """What a quantized checkpoint has under that name; ``None`` if it is plain."""
        reader = self._checkpoint
        if self._stored is None or not isinstance(reader, RawTensors) or not self._stored.holds(reader, name):
            return None
        return self._stored.read(reader, name, out_features, in_features)

    def _weight(self, name: str, out_features: int, in_features: int, split: Split | None) -> Weight:
        """This rank's part."""
        whole: Weight | None = self._read(name, out_features, in_features)
        if whole is None:
            whole = finite(self._checkpoint.take(f"{name}.weight", (out_features, in_features)), name)
        elif isinstance(whole, Tensor):
            whole = finite(whole.to(self.device, self.dtype), name)
        elif isinstance(whole, Groups):
            finite(whole.scale, name)
            finite(whole.offset, name)
        if split is None or self.ranks.size == 1:
            return whole
        dimension, what = _DIMENSION[split], f"parts of {name}"
        if split == "in" and isinstance(whole, Tensor) and not in_features % self.ranks.size:
            # Whole rows share a scale, whichever ranks have their parts: so many ranks compute what one does.
            whole = self._quantized(whole)
        if isinstance(whole, Tensor):
            return self.ranks.cut(whole, dimension, what)
        if isinstance(whole, Channels):
            return Channels(self.ranks.cut(whole.codes, dimension, what).contiguous(), whole.scale)
        if not isinstance(whole, Groups):
            raise TypeError(f"ranks do not share {type(whole).__name__}")
        if split == "in" and whole.order is not None:
            raise UnsupportedModel(
                f"Ranks cannot share {name}, whose inputs are reordered (desc_act): leave out --tensor-parallel."
            )
        if split == "in" and not in_features % self.ranks.size:
            whole = regrouped(whole, math.gcd(whole.size, in_features // self.ranks.size))
        cut = (self.ranks.cut(part, dimension, what) for part in (whole.codes, whole.scale, whole.offset))
        return Groups(*cut, whole.order)

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


def finite(weight: Tensor, name: str) -> Tensor:
    """Raises ``UnsupportedModel`` for a weight that would make every token the same one."""
    # One sum tells nearly always, and takes a tenth of the time.
    if not bool(weight.sum().isfinite()) and not bool(weight.isfinite().all()):
        raise UnsupportedModel(
            f"The weights {name} hold infinities or NaN in {weight.dtype}: the checkpoint is damaged, or needs another "
            "--dtype."
        )
    return weight
