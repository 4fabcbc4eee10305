"""A draft head's folder, opened for its layers to be built."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.errors import ModelUnavailable
from engine.models.builder import LayerBuilder
from engine.weights.safetensors import SafetensorsReader
from engine.weights.weight_loader import WeightLoader

_NAMES = ("model.safetensors", "pytorch_model.bin", "medusa_lm_head.safetensors", "medusa_lm_head.pt")


def head_builder(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    *,
    quantization: str | None = None,
    invariant: bool = False,
) -> LayerBuilder:
    """Raises ``ModelUnavailable``."""
    path = next((folder / name for name in _NAMES if (folder / name).is_file()), None)
    if path is None:
        raise ModelUnavailable(f"{folder} has none of {', '.join(_NAMES)}: it is no draft head.")
    reader = SafetensorsReader(folder, device, dtype, paths=[path])
    return LayerBuilder(WeightLoader(reader, device, dtype, quantization=quantization), invariant=invariant)
