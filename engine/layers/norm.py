"""RMS normalisation, alone or with the residual sum."""

from __future__ import annotations

from torch import Tensor

from engine.weights.loader import Loader
from kernels.rms_norm import add_rms_norm, rms_norm


class RMSNorm:
    def __init__(self, weight: Tensor, eps: float) -> None:
        self._weight = weight
        self._eps = eps

    @classmethod
    def load(cls, weights: Loader, name: str, size: int, eps: float) -> RMSNorm:
        return cls(weights.take(f"{name}.weight", (size,)), eps)

    def __call__(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the normalised ``x + residual``, and that sum: the next residual."""
        if residual is None:
            return rms_norm(x, self._weight, self._eps), x
        return add_rms_norm(x, residual, self._weight, self._eps)
