"""SmoothQuant (Xiao et al., https://arxiv.org/abs/2211.10438): outliers move from activations into weights.

Both are then rounded to 8 bits: weights with a scale for each output, activations with one for each token, which is
found when they are computed.
"""

from __future__ import annotations

from torch import Tensor

_STRENGTH = 0.5
"""How much of the outliers moves, the paper's alpha."""


def smoothing(weight: Tensor, largest: Tensor) -> Tensor:
    """Factors float32 [in] of ``weight`` [out, in], whose inputs' absolute values are at most ``largest`` [in]."""
    weights = weight.abs().amax(0).clamp_min(1e-5)
    return (largest.clamp_min(1e-5) ** _STRENGTH / weights ** (1 - _STRENGTH)).clamp_min_(1e-5)
