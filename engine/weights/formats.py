"""Detects a checkpoint's quantization format, and checks ``--quantization`` against it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from engine.errors import UnsupportedModel
from engine.weights.awq import Awq
from engine.weights.fp8 import Fp8
from engine.weights.gptq import Gptq
from engine.weights.int8 import Int8Channels, has_integers
from engine.weights.mxfp4 import Mxfp4
from engine.weights.quantize import METHODS, W8A8
from engine.weights.quantized_format import QuantizedFormat


def detect_format(config: Mapping[str, Any]) -> QuantizedFormat | None:
    """The quantization format of a checkpoint; ``None``: plain weights. Raises ``UnsupportedModel`` for an unknown
    format."""
    settings = config.get("quantization_config") or config.get("compression_config")
    if not settings:
        return None
    if isinstance(settings, Mapping) and settings.get("transform_config"):
        raise UnsupportedModel(
            "Weights that were rotated before quantization (transform_config) are not supported: take the plain "
            "checkpoint and --quantization int4."
        )
    formats: dict[str, Callable[[Mapping[str, Any]], QuantizedFormat]] = {
        "awq": Awq,
        "gptq": Gptq,
        "fp8": Fp8,
        "fbgemm_fp8": Fp8,
        "compressed-tensors": Fp8,
        "mxfp4": Mxfp4,
    }
    method = settings.get("quant_method") if isinstance(settings, Mapping) else settings
    if not isinstance(method, str) or method not in formats:
        raise UnsupportedModel(
            f"Weights quantized by {method!r} are not supported; these are: {', '.join(formats)}. "
            "Or take the plain checkpoint and --quantization int4."
        )
    try:
        if method == "compressed-tensors" and has_integers(settings):
            formats[method] = Int8Channels
        stored_format: QuantizedFormat = formats[method](settings)
    except (TypeError, ValueError, AttributeError) as error:
        raise UnsupportedModel(f"quantization_config holds a value that makes no sense: {error}.") from error
    return stored_format


def check(quantization: str | None, stored_format: QuantizedFormat | None, device: torch.device) -> None:
    """Raises ``UnsupportedModel`` for a ``--quantization`` that this checkpoint or device does not allow."""
    if quantization is None:
        return
    if quantization not in METHODS:
        raise UnsupportedModel(
            f"--quantization {quantization} is not supported; these are: {', '.join(METHODS)}."
        )
    if stored_format is not None and stored_format.name not in ("FP8", "GGUF", "MXFP4"):
        raise UnsupportedModel(
            f"The checkpoint's weights are quantized already ({stored_format.name}): leave out "
            f"--quantization {quantization}."
        )
    if quantization == W8A8 and device.type != "cpu":
        raise UnsupportedModel("--quantization w8a8 is for CPUs: take int8, or fp8.")
    if quantization == "fp8" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9)):
        raise UnsupportedModel(
            "--quantization fp8 needs an NVIDIA GPU of compute capability 8.9 or later (Ada, Hopper, Blackwell): "
            "take int8."
        )
