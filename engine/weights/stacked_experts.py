"""Checkpoints that have all experts of a layer in one tensor: here the experts get names of their own, as other
checkpoints have them, so that each is read, sharded and quantized like any linear layer.

``…experts.gate_up_proj`` [experts, in, 2 * width] and ``…experts.down_proj`` [experts, width, out] are transposed;
their biases are ``…_bias`` [experts, out]. MXFP4's ``…_blocks`` and ``…_scales`` (see mxfp4.py) are not:
[experts, out, …].
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.weights.safetensors import SafetensorsReader

Stacking = Literal["turns", "halves"]
"""How gate and up projection share a tensor: output by output in turns, or one behind the other."""

_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.(weight|bias|blocks|scales)")
_ENDS: Mapping[str, str] = {"weight": "", "bias": "_bias", "blocks": "_blocks", "scales": "_scales"}


class _Place(NamedTuple):
    stack: str
    """The tensor's name."""
    expert: int
    part: str
    kind: str


class StackedExperts(SafetensorsReader):
    """Raises ``ModelUnavailable`` if the folder holds no readable weights."""

    def __init__(
        self, folder: Path, device: torch.device, dtype: torch.dtype, *, count: int, stacking: Stacking
    ) -> None:
        """``count``: experts of a layer."""
        super().__init__(folder, device, dtype)
        self._experts = count
        self._in_turns = stacking == "turns"

    def __contains__(self, name: str) -> bool:
        place = self._place(name)
        return super().__contains__(place.stack if place else name)

    def _place(self, name: str) -> _Place | None:
        """``None`` for what is stored under its own name."""
        found = None if name in self._files else _EXPERT.fullmatch(name)
        if found is None:
            return None
        layer, expert, part, kind = found.groups()
        both = "down_proj" if part == "down" else "gate_up_proj"
        return _Place(f"{layer}.{both}{_ENDS[kind]}", int(expert), part, kind)

    def _get(self, name: str) -> Tensor:
        place = self._place(name)
        if place is None:
            return super()._get(name)
        stack = super()._get(place.stack)
        if len(stack) != self._experts:
            raise UnsupportedModel(
                f"The tensor {place.stack} has {len(stack)} experts, but config.json calls for {self._experts}."
            )
        rows = stack[place.expert]
        if place.kind == "weight" and rows.dim() == 2:
            rows = rows.T
        if place.part == "down":
            return rows
        if self._in_turns:
            return rows[place.part == "up" :: 2]
        half = len(rows) // 2
        return rows[half:] if place.part == "up" else rows[:half]

    def _count(self, name: str, tensor: Tensor) -> None:
        place = self._place(name)
        super()._count(place.stack if place else name, tensor)
