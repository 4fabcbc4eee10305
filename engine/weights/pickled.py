"""Tensors of a ``torch.save`` file, as the first published draft heads have them; no other objects are unpickled."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import ModelUnavailable


class PickledTensors:
    """Raises ``ModelUnavailable``."""

    def __init__(self, path: Path) -> None:
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise ModelUnavailable(f"{path} cannot be read: {error}. Is the download whole?") from error
        if not isinstance(found, dict) or not all(isinstance(one, Tensor) for one in found.values()):
            raise ModelUnavailable(f"{path} holds other things than tensors by name.")
        self._tensors: dict[str, Tensor] = found

    def keys(self) -> Collection[str]:
        return self._tensors.keys()

    def get_tensor(self, name: str) -> Tensor:
        return self._tensors[name]
