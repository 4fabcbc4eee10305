"""What the inputs of a layer look like on the calibration texts."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from engine.layers.product import Product

_SAMPLE = 512
"""Tokens kept of each layer's inputs."""
_WHOLE = 1024
"""The same of whole texts, which attention needs."""


class ObservedLayer:
    """A layer, or several of one input, that keeps account of its inputs."""

    def __init__(
        self, product: Product, parts: Mapping[str, int], in_features: int, tokens: int, hessian: bool
    ):
        """``tokens``: how many will come, which the sample is spread over."""
        self._product = product
        self.parts = parts
        """Outputs, by the layers' names."""
        self.hessian = torch.zeros(in_features, in_features) if hessian else None
        """Sums of products of inputs, float32 [in, in]."""
        self.seen = 0
        self.largest = torch.zeros(in_features)
        self._sum = torch.zeros(in_features)
        self._every = max(1, tokens // _SAMPLE)
        self._sample: list[Tensor] = []
        self.texts: list[Tensor] = []
        """The inputs of the first texts, each [tokens, in]."""

    @property
    def magnitude(self) -> Tensor:
        """Mean absolute values, float32 [in]."""
        return self._sum / max(1, self.seen)

    @property
    def sample(self) -> Tensor:
        """float32 [rows, in]"""
        return torch.cat(self._sample) if self._sample else torch.zeros(1, len(self.largest))

    def scale_by(self, factor: Tensor) -> None:
        """The inputs, had they been multiplied by ``factor`` [in]."""
        self._sample = [piece * factor for piece in self._sample]
        self._sum *= factor
        self.largest *= factor

    def __call__(self, x: Tensor) -> Tensor:
        wide = x.float()
        if self.hessian is not None:
            self.hessian.addmm_(wide.t(), wide)
        else:
            if self.seen < _WHOLE:
                self.texts.append(wide.clone())
            self._sample.append(wide[(-self.seen) % self._every :: self._every].clone())
            self._sum += wide.abs().sum(0)
            self.largest = torch.maximum(self.largest, wide.abs().amax(0))
        self.seen += len(wide)
        return self._product(x)
