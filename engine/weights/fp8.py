"""Checkpoints in 8-bit floats (e4m3), as fine-grained FP8, fbgemm and compressed-tensors write them.

``weight`` float8_e4m3fn [out, in] is multiplied by its scale, ``weight_scale`` or (despite its name)
``weight_scale_inv``: a scalar, one for each output [out] or [out, 1], or one for each block of 128 x 128, the last ones
partial; the shape tells which.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from engine.errors import UnsupportedModel
from engine.weights.quantize import Float8Weight
from engine.weights.quantized_format import RawTensors, pick

_SCALES = ("weight_scale_inv", "weight_scale")
_ACTIVATIONS = ("input_scale", "input_scale_ub", "activation_scale")
"""Scales of 8-bit activations, which stay in the compute dtype here."""


_KV = (".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".prob_scale", ".output_scale")
"""Scales of an 8-bit KV cache, which computes its own here."""


class Fp8:
    name = "FP8"
    unused = _KV

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
        block = settings.get("weight_block_size") or self._block_structure(settings) or (128, 128)
        self._block = (int(block[0]), int(block[1]))

    def holds(self, tensors: RawTensors, name: str) -> bool:
        return any(f"{name}.{scale}" in tensors for scale in _SCALES)

    def read(self, tensors: RawTensors, name: str, out_features: int, in_features: int) -> Float8Weight:
        for extra in _ACTIVATIONS:
            tensors.ignore(f"{name}.{extra}")
        weight = pick(tensors, f"{name}.weight", (out_features, in_features))
        stored_as = next(scale for scale in _SCALES if f"{name}.{scale}" in tensors)
        scale = tensors.raw(f"{name}.{stored_as}").float()
        high, wide = self._block
        blocks = (-(-out_features // high), -(-in_features // wide))
        match tuple(scale.shape):
            case () | (1,) | (1, 1) if blocks != (1, 1) or scale.dim() < 2:
                return Float8Weight(weight, scale.reshape(1, 1).expand(out_features, 1), in_features)
            case shape if shape == blocks:
                return Float8Weight(weight, scale[torch.arange(out_features) // high], wide)
            case (outputs,) | (outputs, 1) if outputs == out_features:
                return Float8Weight(weight, scale.reshape(-1, 1), in_features)
            case shape:
                raise UnsupportedModel(
                    f"{name}.{stored_as} has the shape {shape}; one scale for all, one an output or one a block of "
                    f"{high} by {wide} is known."
                )

    @staticmethod
    def _block_structure(settings: Mapping[str, Any]) -> Any:
        """compressed-tensors' word for the size of a block."""
        groups = (settings.get("config_groups") or {}).values()
        sizes = [size for group in groups if (size := (group.get("weights") or {}).get("block_structure"))]
        if any(size != sizes[0] for size in sizes):
            raise UnsupportedModel(
                f"compressed-tensors with blocks of several sizes are not supported: {sizes}."
            )
        return sizes[0] if sizes else None
