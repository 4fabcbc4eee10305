"""Checkpoints in 8-bit integers, as compressed-tensors writes them (``int-quantized``): SmoothQuant's, and others.

``weight`` int8 [out, in] is multiplied by ``weight_scale`` [out, 1]; there are no zero points. Where the checkpoint
wants activations in 8 bits with a scale for each token, found when they are computed (W8A8), they are rounded so on
CPUs. Any other wish for them is not followed: they keep 16 bits, which loses less.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import UnsupportedModel
from engine.weights.quantize import ChannelWeight
from engine.weights.quantized_format import RawTensors, pick

_TOKEN = {"type": "int", "num_bits": 8, "strategy": "token", "dynamic": True, "symmetric": True}
_STATIC = ("input_scale", "input_zero_point")
"""Of activations, one for all tokens."""


class Int8Channels:
    name = "INT8"
    unused = ()

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raises ``UnsupportedModel`` for a variant it does not read."""
        groups = settings["config_groups"].values()
        self._rounds_inputs = all(map(_by_token, groups))
        for group in groups:
            weights = group.get("weights") or {}
            kind = {name: weights.get(name) for name in ("type", "num_bits", "strategy", "symmetric")}
            if kind != {"type": "int", "num_bits": 8, "strategy": "channel", "symmetric": True}:
                raise UnsupportedModel(
                    f"compressed-tensors with weights of the kind {kind} are not supported; of integers those of 8 "
                    "bits with a scale for each output (strategy channel), symmetric, are."
                )

    def holds(self, tensors: RawTensors, name: str) -> bool:
        return f"{name}.weight_scale" in tensors

    def read(self, tensors: RawTensors, name: str, out_features: int, in_features: int) -> ChannelWeight:
        codes = pick(tensors, f"{name}.weight", (out_features, in_features))
        scale = pick(tensors, f"{name}.weight_scale", (out_features, 1)).float()
        for extra in _STATIC:
            tensors.ignore(f"{name}.{extra}")
        return ChannelWeight(codes, scale[:, 0].contiguous(), self._rounds_inputs)


def _by_token(group: Mapping[str, Any]) -> bool:
    inputs = group.get("input_activations") or {}
    return all(inputs.get(name) == wanted for name, wanted in _TOKEN.items())


def has_integers(settings: Mapping[str, Any]) -> bool:
    """Whether compressed-tensors' settings are of 8-bit integers."""
    groups = (settings.get("config_groups") or {}).values()
    return any((group.get("weights") or {}).get("type") == "int" for group in groups) and all(
        (group.get("weights") or {}).get("num_bits") == 8 for group in groups
    )
