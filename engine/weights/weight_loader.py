"""A checkpoint's tensors by name: sharded for this rank, plain in the compute dtype or quantized."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.parallel.group import SINGLE_RANK, TPGroup
from engine.weights.formats import check
from engine.weights.quantize import (
    GROUPS,
    W8A8,
    ChannelWeight,
    Float8Weight,
    Int4Weight,
    Int6Weight,
    regrouped,
    to_fp8,
    to_int4,
    to_int6,
    to_int8,
)
from engine.weights.quantized_format import QuantizedFormat, RawTensors, pick
from engine.weights.stored_rows import StoredRows
from kernels.native import float8
from kernels.native.linear import available

Split = Literal["out", "in", "each"]
"""How a layer is sharded: by outputs (column-parallel), by inputs (row-parallel), or not: each rank has all of it."""

DIMENSION: Mapping[Split, int | None] = {"out": 0, "in": 1, "each": None}
"""The dimension of a weight [out, in] that is sharded."""

Weight = Tensor | Int4Weight | ChannelWeight | Float8Weight | Int6Weight


class Checkpoint(Protocol):
    """A file format."""

    def __contains__(self, name: str) -> bool: ...

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor in the compute dtype, on the device. Raises ``UnsupportedModel`` if there is none."""
        ...

    def ignore(self, name: str) -> None:
        """Marks a tensor as unused by the model; ``*end``: all tensors whose names end so."""
        ...

    def finish(self) -> None:
        """Raises ``UnsupportedModel`` if a tensor was neither taken nor ignored."""
        ...


@runtime_checkable
class RowCheckpoint(Protocol):
    """One whose embedding can stay as it is stored."""

    def rows(self, layer: str, shape: tuple[int, int], *, grouped: bool) -> StoredRows | None:
        """``grouped``: whether ``take`` would read its 4-bit codes. ``None`` if it is stored as plain numbers.

        Raises ``UnsupportedModel`` if there is none of that name and shape.
        """
        ...


@runtime_checkable
class PartCheckpoint(Protocol):
    """One that a rank reads its part of."""

    def ignore_others(self, prefix: str, kept: range) -> None:
        """Marks tensors as unused whose names go on with a number that is not among ``kept``."""
        ...

    def take_part(self, name: str, shape: tuple[int, ...], dim: int, first: int, count: int) -> Tensor:
        """As ``take`` of the whole ``shape``, but only ``count`` entries along ``dim``, from ``first``."""
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
        """``quantization``: how plain weights are quantized, one of ``METHODS``. ``quantized_format``: how a quantized
        checkpoint has them.

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
            plain = weight if isinstance(weight, Tensor) else weight.weight()
            return finite(plain.to(self.device, self.dtype), name)
        return finite(self._checkpoint.take(name, shape), name)

    def exact(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """As ``take``, not rounded to the compute dtype, where the checkpoint has tensors as they are."""
        if isinstance(self._checkpoint, RawTensors):
            return finite(pick(self._checkpoint, name, shape).to(self.device), name)
        return self.take(name, shape)

    def ignore(self, name: str) -> None:
        self._checkpoint.ignore(name)

    def ignore_others(self, prefix: str, kept: range) -> None:
        """Marks what is named ``prefix`` and a number as unused by this rank, but for the numbers ``kept``."""
        if isinstance(self._checkpoint, PartCheckpoint):
            self._checkpoint.ignore_others(prefix, kept)

    def rows(self, name: str, shape: tuple[int, int], *, checked: bool = False) -> Tensor | StoredRows:
        """An embedding ``name.weight``, which is not widened where it is read row by row. ``checked``: it is known to
        be finite.

        Raises ``UnsupportedModel`` if there is none of that name and shape.
        """
        reader = self._checkpoint
        keeps = (
            self._format is not None and isinstance(reader, RawTensors) and self._format.holds(reader, name)
        )
        if self.device.type == "cpu" and isinstance(reader, RowCheckpoint):
            stored = reader.rows(name, shape, grouped=keeps)
            if stored is not None:
                for piece in () if checked else stored.pieces():
                    finite(piece, name)
                return stored
        return self.take(f"{name}.weight", shape)

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterator[Tensor] | None:
        """``name.weight``, some rows at a time, where it ``packs`` and the file has it in another form than plain
        numbers; ``None`` where it is read as a whole.

        Raises ``UnsupportedModel`` if there is none of that name and shape."""
        reader = self._checkpoint
        if not self.packs or not isinstance(reader, RowCheckpoint) or not self.holds_plain(name):
            return None
        stored = reader.rows(name, shape, grouped=False)
        return None if stored is None else (finite(piece, name) for piece in stored.pieces())

    def differs(self, name: str, weight: Callable[[], Tensor], *, sharded: bool = False) -> bool:
        """Whether the checkpoint has a plain tensor of that name that differs from ``weight``, which with ``sharded``
        is this rank's of equally many rows each."""
        if name not in self:
            return False
        ours = weight()
        if sharded:
            rows, width = ours.shape
            return not torch.equal(
                self.take_part(name, (rows * self.tp.size, width), 0, self.tp, "rows"), ours
            )
        return not torch.equal(self.take(name, tuple(ours.shape)), ours)

    def finish(self) -> None:
        """Raises ``UnsupportedModel`` if a tensor was left over that would change the results."""
        for end in self._format.unused if self._format else ():
            self._checkpoint.ignore(f"*{end}")
        self._checkpoint.finish()

    def take_part(self, name: str, shape: tuple[int, ...], dim: int, tp: TPGroup, what: str) -> Tensor:
        """This rank's shard of a plain tensor of ``shape`` along ``dim``; only that is read, where the format allows.

        Raises ``UnsupportedModel`` if there is none of that name and shape, or it cannot be divided."""
        width = tp.divide(shape[dim], what)
        reader = self._checkpoint
        if isinstance(reader, PartCheckpoint):
            return finite(reader.take_part(name, shape, dim, tp.rank * width, width), name)
        return tp.shard(finite(reader.take(name, shape), name), dim, what)

    def holds_plain(self, layer: str) -> bool:
        """Whether ``layer.weight`` is not in a quantized format."""
        reader = self._checkpoint
        if self._format is None or not isinstance(reader, RawTensors):
            return True
        return not self._format.holds(reader, layer)

    def weight(
        self, name: str, out_features: int, in_features: int, split: Split | None = None, copies: int = 1
    ) -> Weight:
        """This rank's shard of ``name.weight``. ``copies``: ranks that have the same one."""
        tp = self.tp.sharing(copies)
        dimension, what = None if split is None else DIMENSION[split], f"parts of {name}"
        # A row that is quantized is quantized as a whole.
        by_rows = split == "out" or self._quantization is None
        if dimension is not None and tp.size > 1 and by_rows and self.holds_plain(name):
            return self.take_part(f"{name}.weight", (out_features, in_features), dimension, tp, what)
        whole: Weight | None = self._read(name, out_features, in_features)
        if whole is None:
            whole = finite(self._checkpoint.take(f"{name}.weight", (out_features, in_features)), name)
        elif isinstance(whole, Float8Weight):
            whole = self._eight_bits(whole, name)
        elif isinstance(whole, Tensor):
            whole = finite(whole.to(self.device, self.dtype), name)
        elif isinstance(whole, Int4Weight):
            finite(whole.scale, name)
            finite(whole.offset, name)
        elif isinstance(whole, Int6Weight):
            whole = self._six_bits(whole, name, split)
        elif isinstance(whole, ChannelWeight):
            codes, scale = whole.codes.to(self.device), finite(whole.scale, name).to(self.device)
            whole = replace(whole, codes=codes, scale=scale)
        if dimension is None or tp.size == 1:
            return whole
        if split == "in" and isinstance(whole, Tensor) and not in_features % tp.size:
            # A whole row has one scale, on whichever ranks: several ranks compute the same as one.
            whole = self.quantized(whole)
        if isinstance(whole, Tensor):
            return tp.shard(whole, dimension, what)
        if isinstance(whole, ChannelWeight):
            scale = tp.shard(whole.scale, 0, what) if split == "out" else whole.scale
            return replace(whole, codes=tp.shard(whole.codes, dimension, what).contiguous(), scale=scale)
        if isinstance(whole, Int6Weight):
            codes, scale = (tp.shard(part, dimension, what) for part in (whole.codes, whole.scale))
            return Int6Weight(codes, scale)
        if not isinstance(whole, Int4Weight):
            # Floats of 8 bits are plain on several ranks.
            raise TypeError(f"{type(whole).__name__} cannot be sharded")
        if split == "in" and whole.order is not None:
            raise UnsupportedModel(
                f"{name} has reordered inputs (desc_act) and cannot be sharded: leave out --tensor-parallel."
            )
        if split == "in" and not in_features % tp.size:
            whole = regrouped(whole, math.gcd(whole.size, in_features // tp.size))
        cut = (tp.shard(part, dimension, what) for part in (whole.codes, whole.scale, whole.offset))
        return Int4Weight(*cut, whole.order)

    def _six_bits(self, weight: Int6Weight, name: str, split: Split | None) -> Int6Weight | Tensor:
        """As it is, or plain where there is no product for it, or a rank would get part of a group."""
        whole_groups = split != "in" or weight.scale.shape[1] % self.tp.size == 0
        if self.device.type == "cpu" and available() and whole_groups:
            return weight
        return finite(weight.weight().to(self.device, self.dtype), name)

    def _eight_bits(self, weight: Float8Weight, name: str) -> Float8Weight | Tensor:
        """As it is where there is a product for it, of one rank; else plain."""
        kept = self.device.type == "cpu" and self._quantization is None and self.tp.size == 1
        # Some store the like in e5m2, or what is no float of 8 bits at all.
        kept = kept and weight.codes.dtype == torch.float8_e4m3fn
        # Codes of all ones are no numbers.
        if kept and float8.available() and not bool((weight.codes.view(torch.uint8) & 127 == 127).any()):
            return replace(weight, scale=finite(weight.scale, name))
        return finite(weight.weight().to(self.device, self.dtype), name)

    def bias(self, name: str, out_features: int, split: Split | None = None, copies: int = 1) -> Tensor:
        whole = self.take(f"{name}.bias", (out_features,))
        return self.tp.sharing(copies).shard(whole, 0, f"outputs of {name}") if split == "out" else whole

    @property
    def packs(self) -> bool:
        """Whether plain weights are quantized for kernels/native/linear.c, as far as their shapes allow."""
        return self._quantization is not None and self.device.type == "cpu" and available()

    def quantized(self, weight: Tensor, head: bool = False) -> Weight:
        """A plain weight, quantized by ``quantization``.

        With int4 the LM head, which is most sensitive, gets 6 bits where there is a product for them, else 8, and so do
        layers whose inputs are not a multiple of 32. With w8a8 the head's inputs keep 16 bits. With fp8 layers whose
        sizes are not multiples of 16 stay plain.
        """
        method, whole_groups = self._quantization, weight.shape[1] % 32 == 0
        if method in GROUPS and not head and whole_groups:
            return to_int4(weight, math.gcd(GROUPS[method], weight.shape[1]))
        if method in GROUPS and head and whole_groups and weight.device.type == "cpu" and available():
            return to_int6(weight)
        if method in ("int8", W8A8) or method in GROUPS:
            return to_int8(weight, rounds_inputs=method == W8A8 and not head)
        if method == "fp8" and not any(size % 16 for size in weight.shape):
            return to_fp8(weight)
        return weight

    def _read(self, name: str, out_features: int, in_features: int) -> Weight | None:
        """A quantized checkpoint's weight of that name; ``None`` if it is plain."""
        reader = self._checkpoint
        if self._format is None or not isinstance(reader, RawTensors) or not self._format.holds(reader, name):
            return None
        return self._format.read(reader, name, out_features, in_features)


def finite(weight: Tensor, name: str) -> Tensor:
    """Raises ``UnsupportedModel`` if ``weight`` has NaN or infinities."""
    # A sum suffices in nearly all cases, and takes a tenth of the time.
    if not bool(weight.sum().isfinite()) and not bool(weight.isfinite().all()):
        raise UnsupportedModel(
            f"The weights {name} hold infinities or NaN in {weight.dtype}: the checkpoint is damaged, or needs another "
            "--dtype."
        )
    return weight
