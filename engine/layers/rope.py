"""The rotation tables: how fast each pair of dimensions turns, and the scalings that stretch a context."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from engine.errors import UnsupportedModel


class RotaryTable:
    """Cosines and sines of all positions: two tables [positions, head_dim / 2]."""

    def __init__(self, frequencies: Tensor, positions: int, device: torch.device, dtype: torch.dtype) -> None:
        angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
        self._cos = angles.cos().to(device, dtype)
        self._sin = angles.sin().to(device, dtype)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self._cos[positions], self._sin[positions]


def frequencies(head_dim: int, theta: float, scaling: Mapping[str, Any]) -> Tensor:
    """Radians a position, float32 [head_dim / 2]. Raises ``UnsupportedModel`` for a scaling it does not know."""
    base = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return base
    if kind == "linear":
        return base / float(scaling["factor"])
    if kind == "llama3":
        return _llama3(base, scaling)
    raise UnsupportedModel(
        f"rope_scaling of type {kind!r} is not supported; 'default', 'linear' and 'llama3' are."
    )


def _llama3(base: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Llama 3.1: slow turns are slowed further, fast ones are kept, those between are blended."""
    trained = float(scaling["original_max_position_embeddings"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = trained * base / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * base + (1 - kept) * base / float(scaling["factor"])
