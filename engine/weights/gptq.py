"""GPTQ checkpoints: weights in 4 or 8 bits, in the layout of AutoGPTQ and GPTQModel.

``qweight`` int32 [in * bits / 32, out] has consecutive inputs in a word, lowest bits first; ``qzeros`` int32
[groups, out * bits / 32] consecutive outputs, with one subtracted unless ``checkpoint_format`` is ``gptq_v2``;
``scales`` float16 [groups, out]; ``g_idx`` int32 [in] the group of each input, which with ``desc_act`` are not in
order; ``weight = (code - zero) * scale`` (Frantar et al., https://arxiv.org/abs/2210.17323).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.weights.quantize import Int4Weight
from engine.weights.quantized_format import RawTensors, group_size, pick

_FORMATS = ("gptq", "gptq_v2")


class Gptq:
    name = "GPTQ"
    unused = ()

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raises ``UnsupportedModel`` for a variant it does not read."""
        self._bits = settings.get("bits", 4)
        layout = settings.get("checkpoint_format", "gptq")
        if self._bits not in (4, 8) or layout not in _FORMATS:
            raise UnsupportedModel(
                f"GPTQ weights of {self._bits} bits in the format {layout!r} are not supported; "
                f"4 and 8 bits in {' and '.join(map(repr, _FORMATS))} are."
            )
        # What the first format subtracts from the zero points, so that the largest fits.
        self._less = int(layout == "gptq")
        self._size = group_size(settings.get("group_size", 128), self.name)

    def holds(self, tensors: RawTensors, name: str) -> bool:
        return f"{name}.qweight" in tensors

    def read(
        self, tensors: RawTensors, name: str, out_features: int, in_features: int
    ) -> Int4Weight | Tensor:
        """Of 8 bits, the plain weight."""
        size = self._size or in_features
        groups, a_word = in_features // size, 32 // self._bits
        words = pick(tensors, f"{name}.qweight", (in_features // a_word, out_features))
        zeros = pick(tensors, f"{name}.qzeros", (groups, out_features // a_word))
        scale = pick(tensors, f"{name}.scales", (groups, out_features)).float().t().contiguous()
        # The largest zero point becomes 0 again, as where the sum is cut to its bits.
        zero = ((self._unpack(zeros) + self._less) & (2**self._bits - 1)).t().float()
        codes = self._unpack(words.t()).to(torch.uint8)
        order = self._order(tensors, name, in_features, groups)
        if order is not None:
            codes = codes[:, order]
        if self._bits == 4:
            return Int4Weight(codes, scale, (8 - zero) * scale, order)
        # 8-bit codes differ from 4-bit ones only in what stands in the middle.
        return Int4Weight(codes, scale, (8 - zero) * scale, order).weight()

    def _unpack(self, words: Tensor) -> Tensor:
        """int32 [rows, columns * bits / 32] → int32 [rows, columns]"""
        shifts = torch.arange(0, 32, self._bits, dtype=torch.int32)
        return ((words[..., None] >> shifts) & (2**self._bits - 1)).flatten(1)

    def _order(self, tensors: RawTensors, name: str, in_features: int, groups: int) -> Tensor | None:
        """The inputs group by group; ``None`` if they are so already."""
        if f"{name}.g_idx" not in tensors:
            return None
        group = pick(tensors, f"{name}.g_idx", (in_features,)).long()
        counts = torch.bincount(group, minlength=groups)
        if len(counts) != groups or bool((counts != in_features // groups).any()):
            raise UnsupportedModel(f"The groups of {name}.g_idx are not of one size: this is not supported.")
        order = group.argsort(stable=True)
        return None if torch.equal(order, torch.arange(in_features)) else order
