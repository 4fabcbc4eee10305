"""GPTQ (Frantar et al., https://arxiv.org/abs/2210.17323) with act-order.

Inputs are rounded one by one, those with the largest activations first, and each one's error is made up for by the
weights of the inputs that are still to come, by the inverse of the Hessian ``X Xᵀ`` of the layer's squared error.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from engine.quantizer.grid import Codes, codes_of, fit

_DAMPING = 0.01
"""Of the Hessian's mean diagonal, added to it."""
_BLOCK = 128
"""Inputs after which those to come are corrected all at once, the paper's lazy updates."""


def gptq(weight: Tensor, hessian: Tensor, bits: int, size: int, symmetric: bool = False) -> Codes:
    """``weight`` float32 [out, in], ``hessian`` float32 [in, in]: sums of products of the layer's inputs."""
    out_features, in_features = weight.shape
    diagonal = hessian.diagonal()
    order = diagonal.argsort(descending=True, stable=True)
    left = weight[:, order]
    inverse = _inverse_factor(hessian[order][:, order])
    # Inputs that were never seen move nothing, and are rounded to nearest.
    block = math.gcd(size, _BLOCK)
    codes = torch.empty(out_features, in_features, dtype=torch.uint8)
    zeros, scales = [], []
    for start in range(0, in_features, block):
        stop = start + block
        if start % size == 0:
            zero, scale = fit(left[:, start : start + size], bits, symmetric)
            zeros.append(zero)
            scales.append(scale)
        # Inputs as rows, which are contiguous.
        piece, factor = left[:, start:stop].t().contiguous(), inverse[start:stop, start:stop]
        errors = torch.empty_like(piece)
        for i in range(block):
            chosen = codes_of(piece[i, :, None], zeros[-1], scales[-1], bits)[:, 0]
            codes[:, start + i] = chosen.to(torch.uint8)
            error = (piece[i] - (chosen - zeros[-1]) * scales[-1].float()) / factor[i, i]
            piece[i + 1 :].addr_(factor[i, i + 1 :], error, alpha=-1)
            errors[i] = error
        left[:, stop:].addmm_(errors.t(), inverse[start:stop, stop:], alpha=-1)
    places = torch.empty_like(order)
    places[order] = torch.arange(in_features)
    return Codes(
        codes[:, places].contiguous(),
        torch.stack(zeros, 1).int(),
        torch.stack(scales, 1),
        places // size,
    )


def _inverse_factor(hessian: Tensor) -> Tensor:
    """The upper Cholesky factor of the damped Hessian's inverse: that of ``H`` with its inputs the other way round,
    inverted, the other way round."""
    damped = hessian.flip(0, 1)
    diagonal = damped.diagonal()
    mean = diagonal.mean().clamp_min(1e-12)
    diagonal[diagonal == 0] = mean
    damping = _DAMPING
    while True:
        diagonal.add_(damping * mean)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            ones = torch.eye(len(lower))
            return torch.linalg.solve_triangular(lower, ones, upper=False, out=ones).flip(0, 1)
        # Too few texts for so many inputs, in float32: more damping.
        damping *= 10
