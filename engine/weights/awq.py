"""AWQ checkpoints: 4-bit weights in the GEMM layout of AutoAWQ.

``qweight`` int32 [in, out / 8] has eight outputs in a word, ``qzeros`` int32 [in / group, out / 8] their zero points,
``scales`` float16 [in / group, out]; ``weight = (code - zero) * scale``. The nibbles of a word, from the lowest, are
outputs 0, 2, 4, 6, 1, 3, 5, 7 (Lin et al., https://arxiv.org/abs/2306.00978; AutoAWQ, ``packing_utils.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.weights.quantize import Int4Weight
from engine.weights.quantized_format import RawTensors, group_size, pick

_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""The nibble of a word that holds each output."""


class Awq:
    name = "AWQ"
    unused = ()

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raises ``UnsupportedModel`` for a variant it does not read."""
        bits = settings.get("bits", settings.get("w_bit", 4))
        layout = str(settings.get("version", settings.get("format", "gemm"))).lower()
        if bits != 4 or layout != "gemm":
            raise UnsupportedModel(
                f"AWQ weights of {bits} bits in the layout {layout!r} are not supported; 4 bits in 'gemm' are."
            )
        self._size = group_size(settings.get("group_size", settings.get("q_group_size", 128)), self.name)

    def holds(self, tensors: RawTensors, name: str) -> bool:
        return f"{name}.qweight" in tensors

    def read(self, tensors: RawTensors, name: str, out_features: int, in_features: int) -> Int4Weight:
        groups = in_features // (self._size or in_features)
        words = pick(tensors, f"{name}.qweight", (in_features, out_features // 8))
        zeros = pick(tensors, f"{name}.qzeros", (groups, out_features // 8))
        scale = pick(tensors, f"{name}.scales", (groups, out_features)).float().t().contiguous()
        zero = _unpack(zeros).t().float()
        return Int4Weight(_unpack(words).t().contiguous(), scale, (8 - zero) * scale)


def _unpack(words: Tensor) -> Tensor:
    """int32 [rows, columns / 8] → uint8 [rows, columns]"""
    shifts = 4 * torch.tensor(_PLACES, dtype=torch.int32)
    return ((words[..., None] >> shifts) & 15).to(torch.uint8).flatten(1)
