"""Checkpoints in 8-bit floats (e4m3), as fine-grained FP8, fbgemm and compressed-tensors write them.

``weight`` float8_e4m3fn [out, in] and its scale, by which it is multiplied: ``weight_scale``, one for all or one an
output; or ``weight_scale_inv`` (despite its name) [out / 128, in / 128], one a block, the last ones cut off.
They are widened when loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.weights.stored import RawTensors, pick

_SCALES = ("weight_scale_inv", "weight_scale")
_ACTIVATIONS = ("input_scale", "input_scale_ub", "activation_scale")
"""Made for activations in 8 bits, which stay in the compute dtype here."""


class Fp8:
    name = "FP8"

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raises ``UnsupportedModel`` for a variant it does not read."""
        if settings.get("quant_method") == "compressed-tensors":
            for group in (settings.get("config_groups") or {}).values():
                weights = group.get("weights") or {}
                if weights.get("type") != "float" or weights.get("num_bits") != 8:
                    raise UnsupportedModel(
                        f"compressed-tensors with weights of type {weights.get('type')!r} in "
                        f"{weights.get('num_bits')} bits are not supported; 8-bit 'float' is."
                    )
        block = settings.get("weight_block_size") or (128, 128)
        self._block = (int(block[0]), int(block[1]))

    def holds(self, tensors: RawTensors, name: str) -> bool:
        return any(f"{name}.{scale}" in tensors for scale in _SCALES)

    def read(self, tensors: RawTensors, name: str, out_features: int, in_features: int) -> Tensor:
        """The plain weight."""
        for extra in _ACTIVATIONS:
            tensors.ignore(f"{name}.{extra}")
        weight = pick(tensors, f"{name}.weight", (out_features, in_features)).float()
        if f"{name}.weight_scale_inv" in tensors:
            high, wide = self._block
            blocks = (-(-out_features // high), -(-in_features // wide))
            scale = pick(tensors, f"{name}.weight_scale_inv", blocks).float()
            return (
                weight
                * scale.repeat_interleave(high, 0)[:out_features].repeat_interleave(wide, 1)[:, :in_features]
            )
        scale = tensors.raw(f"{name}.weight_scale").float()
        if scale.numel() not in (1, out_features):
            raise UnsupportedModel(
                f"{name}.weight_scale has the shape {tuple(scale.shape)}; one scale for all or one an output is known."
            )
        return weight * torch.reshape(scale, (-1, 1))
