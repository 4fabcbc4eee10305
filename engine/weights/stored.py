"""Checkpoints whose weights are stored in fewer bits, as config.json's ``quantization_config`` says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from engine.errors import UnsupportedModel
from engine.weights.quantize import METHODS, Groups


@runtime_checkable
class RawTensors(Protocol):
    """A checkpoint's tensors as they are stored, on the CPU."""

    def __contains__(self, name: str) -> bool: ...

    def raw(self, name: str) -> Tensor: ...

    def ignore(self, name: str) -> None: ...


class Stored(Protocol):
    """A way of storing weights."""

    name: str
    unused: tuple[str, ...]
    """Ends of names of tensors that such checkpoints have and that are of no use here."""

    def holds(self, tensors: RawTensors, name: str) -> bool:
        """Whether the layer of that name is stored so; those that were not to be converted are plain."""
        ...

    def read(self, tensors: RawTensors, name: str, out_features: int, in_features: int) -> Groups | Tensor:
        """Raises ``UnsupportedModel`` if the tensors are not of the shapes that belong to these numbers."""
        ...


def stored(config: Mapping[str, Any]) -> Stored | None:
    """How a checkpoint's weights are stored; ``None``: plainly. Raises ``UnsupportedModel`` for a way not known."""
    from engine.weights.awq import Awq
    from engine.weights.fp8 import Fp8
    from engine.weights.gptq import Gptq

    settings = config.get("quantization_config") or config.get("compression_config")
    if not settings:
        return None
    if isinstance(settings, Mapping) and settings.get("transform_config"):
        raise UnsupportedModel(
            "Weights that were turned before they were quantized (transform_config) are not supported: take the plain "
            "checkpoint and --quantization int4."
        )
    ways = {"awq": Awq, "gptq": Gptq, "fp8": Fp8, "fbgemm_fp8": Fp8, "compressed-tensors": Fp8}
    method = settings.get("quant_method") if isinstance(settings, Mapping) else settings
    if not isinstance(method, str) or method not in ways:
        raise UnsupportedModel(
            f"Weights quantized by {method!r} are not supported; these are: {', '.join(ways)}. "
            "Or take the plain checkpoint and --quantization int4."
        )
    try:
        way: Stored = ways[method](settings)
    except (TypeError, ValueError, AttributeError) as error:
        raise UnsupportedModel(f"quantization_config holds a value that makes no sense: {error}.") from error
    return way


def check(quantization: str | None, way: Stored | None, device: torch.device) -> None:
    """Raises ``UnsupportedModel`` for a ``--quantization`` that this checkpoint or device does not allow."""
    if quantization is None:
        return
    if quantization not in METHODS:
        raise UnsupportedModel(
            f"--quantization {quantization} is not supported; these are: {', '.join(METHODS)}."
        )
    if way is not None and way.name not in ("FP8", "GGUF"):
        raise UnsupportedModel(
            f"The checkpoint's weights are quantized already ({way.name}): leave out --quantization {quantization}."
        )
    if quantization == "fp8" and (device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 9)):
        raise UnsupportedModel(
            "--quantization fp8 needs an NVIDIA GPU of compute capability 8.9 or later (Ada, Hopper, Blackwell): "
            "take int8."
        )


def group_size(size: int, method: str) -> int | None:
    """``None`` where a whole row shares its scale. Raises ``UnsupportedModel``."""
    if size == -1:
        return None
    if size <= 0 or size % 32:
        raise UnsupportedModel(
            f"{method} weights in groups of {size} are not supported; multiples of 32 and -1 are."
        )
    return size


def pick(tensors: RawTensors, name: str, shape: tuple[int, ...]) -> Tensor:
    """Raises ``UnsupportedModel`` if the stored tensor has another shape."""
    tensor = tensors.raw(name)
    if tuple(tensor.shape) != shape:
        raise UnsupportedModel(
            f"The tensor {name} has the shape {tuple(tensor.shape)}, but config.json calls for {shape}."
        )
    return tensor
