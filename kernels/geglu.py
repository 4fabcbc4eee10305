"""The gated activation of Gemma's MLP (https://arxiv.org/abs/2002.05202).

    out = gelu(gate) * up,    gelu(z) = z / 2 * (1 + tanh(√(2 / π) * (z + 0.044715 z³)))

Shapes: ``gate_up`` [..., 2 * width], the gate in the first half. Returns [..., width]. The kernel computes in float32
whatever the dtype, and rounds once; there (1 + tanh(a)) / 2 is 1 / (1 + e^-2a), which all chips have.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.launch import Variant, jit, on_triton, tl
from kernels.native import rows as native
from kernels.swiglu import gated_variants, launch_gated, sigmoid


def geglu_reference(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.gelu(gate, approximate="tanh").mul_(up)


def geglu(gate_up: Tensor) -> Tensor:
    if on_triton(gate_up):
        return geglu_triton(gate_up)
    if native.takes(gate_up, gate_up.shape[-1] // 2):
        return native.gated(gate_up, gelu=True)
    return geglu_reference(gate_up)


@jit
def _geglu_kernel(gate_up, out, width, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < width
    gate = tl.load(gate_up + row * stride + columns, mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + width + columns, mask, other=0.0).to(tl.float32)
    gelu = gate * sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    tl.store(out + row * width + columns, (gelu * up).to(out.dtype.element_ty), mask)


def geglu_triton(gate_up: Tensor) -> Tensor:
    return launch_gated(_geglu_kernel, gate_up)


def variants(arch: str) -> Iterator[Variant]:
    """Compiled ahead of time: see kernels/launch.py."""
    return gated_variants(_geglu_kernel, arch)
