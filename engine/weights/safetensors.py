"""Tensors by name from a folder of safetensors files, single or sharded.

The format: https://huggingface.co/docs/safetensors. Files are memory-mapped: a tensor takes memory only once it
is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ModelUnavailable, UnsupportedModel
from engine.weights.pickled import PickledTensors


class SafetensorsReader:
    """Raises ``ModelUnavailable`` if the folder holds no readable weights."""

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype,
        *,
        paths: Sequence[Path] | None = None,
    ) -> None:
        """``paths``: its files, where they have other names than a model's; among them may be pickles of tensors."""
        self._device = device
        self._dtype = dtype
        self._files: dict[str, safe_open | PickledTensors] = {}
        self.paths = paths = _paths(folder) if paths is None else list(paths)
        for path in paths:
            file = open_file(path) if path.suffix == ".safetensors" else PickledTensors(path)
            self._files |= dict.fromkeys(file.keys(), file)
        self._left = set(self._files)
        self.total_bytes = sum(path.stat().st_size for path in paths)
        self.on_read: Callable[[int], None] = lambda count: None
        """Called with the bytes of each tensor that was taken."""

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor, in the compute dtype and on the device.

        Raises ``UnsupportedModel`` if there is none of that name and shape.
        """
        tensor = self._get(name)
        _check_shape(name, tuple(tensor.shape), shape)
        taken = tensor.to(self._device, self._dtype)
        self._count(name, tensor)
        return taken

    def take_part(self, name: str, shape: tuple[int, ...], dim: int, first: int, count: int) -> Tensor:
        """As ``take`` of the whole ``shape``, but only ``count`` entries along ``dim``, from ``first``: no more is
        read."""
        file = self._files.get(name)
        if file is None or isinstance(file, PickledTensors):
            return self.take(name, shape).narrow(dim, first, count)
        stored = file.get_slice(name)
        _check_shape(name, tuple(stored.get_shape()), shape)
        tensor: Tensor = stored[(slice(None),) * dim + (slice(first, first + count),)]
        self._count(name, tensor)
        return tensor.to(self._device, self._dtype)

    def raw(self, name: str) -> Tensor:
        """The tensor as it is stored, on the CPU. Raises ``UnsupportedModel`` if there is none of that name."""
        tensor = self._get(name)
        self._count(name, tensor)
        return tensor

    def _get(self, name: str) -> Tensor:
        if name not in self._files:
            raise UnsupportedModel(f"The weights lack the tensor {name}: they do not belong to config.json.")
        return self._files[name].get_tensor(name)

    def _count(self, name: str, tensor: Tensor) -> None:
        self._left.discard(name)
        self.on_read(tensor.nbytes)

    def release(self) -> None:
        """Closes the files; tensors that are in use keep theirs mapped."""
        self._files = {}

    def ignore(self, name: str) -> None:
        """Marks a tensor as unused; ``prefix.`` and ``*suffix`` mark all tensors whose names begin or end so."""
        self._left.discard(name)
        if name.startswith("*"):
            self._left = {left for left in self._left if not left.endswith(name[1:])}
        if name.endswith("."):
            self._left = {left for left in self._left if not left.startswith(name)}

    def ignore_others(self, prefix: str, kept: range) -> None:
        """Marks tensors as unused whose names begin with ``prefix`` and a number that is not among ``kept``."""
        numbered = re.compile(re.escape(prefix) + r"(\d+)\.")
        self._left = {
            name for name in self._left if (found := numbered.match(name)) is None or int(found[1]) in kept
        }

    def finish(self) -> None:
        """Raises ``UnsupportedModel`` if a tensor was left over, as the model would then not be computed in full.

        Biases of zeros are allowed: quantization tools write them for layers without a bias.
        """
        self._left = {
            name for name in self._left if not (name.endswith(".bias") and not self._get(name).any())
        }
        if self._left:
            names = sorted(self._left)
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise UnsupportedModel(
                f"The weights hold tensors that this model family does not use: {', '.join(names[:3])}{more}."
            )


def _check_shape(name: str, found: tuple[int, ...], shape: tuple[int, ...]) -> None:
    if found != shape:
        raise UnsupportedModel(f"The tensor {name} has the shape {found}, but config.json calls for {shape}.")


def open_file(path: Path) -> safe_open:
    """Raises ``ModelUnavailable``."""
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (OSError, SafetensorError) as error:
        raise ModelUnavailable(f"{path} cannot be read: {error}. Is the download whole?") from error


def _paths(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = set(json.loads(index.read_bytes())["weight_map"].values())
            paths = [folder / name for name in sorted(names)]
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ModelUnavailable(f"{index} names no files by weight_map. Is the download whole?") from error
    else:
        paths = [folder / "model.safetensors"]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ModelUnavailable(
            f"{folder} lacks {', '.join(missing)}. Weights are read from safetensors files only."
        )
    return paths
