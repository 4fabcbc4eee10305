"""The gated activation of Gemma's MLP (https://arxiv.org/abs/2002.05202).

    out = gelu(gate) * up,    gelu(z) = z / 2 * (1 + tanh(√(2 / π) * (z + 0.044715 z³)))

Shapes: ``gate_up`` [tokens, 2 * width], the gate in the first half. Returns [tokens, width].
"""

from __future__ import annotations

import torch
from torch import Tensor


def geglu_reference(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.gelu(gate, approximate="tanh").mul_(up)


def geglu(gate_up: Tensor) -> Tensor:
    return geglu_reference(gate_up)
