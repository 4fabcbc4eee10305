"""The gated activation of Llama's MLP (https://arxiv.org/abs/2002.05202).

    out = silu(gate) * up,    silu(z) = z / (1 + e^-z)

Shapes: ``gate_up`` [tokens, 2 * width], the gate in the first half. Returns [tokens, width].
"""

from __future__ import annotations

import torch
from torch import Tensor


def swiglu_reference(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate).mul_(up)


def swiglu(gate_up: Tensor) -> Tensor:
    return swiglu_reference(gate_up)
