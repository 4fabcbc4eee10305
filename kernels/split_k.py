"""Split-K with fixed splits, shared by the linear kernels for few rows.

A product of few rows has too few outputs to fill the chip, so the inputs are split, too. Each program stores the
partial sums of its split in float32; the last program of a tile, found by an integer counter, adds them up in order. So
the size and order of the splits depend on the weight's shape alone, and one launch suffices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.launch import jit, tl

PROGRAMS = {"sm_80": 432, "sm_90": 528, "sm_100": 592, "gfx942": 1216}
"""Programs that a launch should have: four for each multiprocessor."""
MAX_SPLITS = 16
"""The most splits of the inputs."""
MIN_STEPS = 2
"""The fewest steps of a program, so that loads can be pipelined."""


@dataclass(frozen=True, slots=True)
class Splits:
    steps: int
    """Steps of a program; the last one of a tile may have fewer."""
    count: int


def split(tiles: int, steps: int, arch: str) -> Splits:
    """Splits ``steps`` along the inputs, for ``tiles`` of outputs."""
    wanted = min(MAX_SPLITS, -(-PROGRAMS[arch] // tiles))
    size = max(MIN_STEPS, -(-steps // wanted))
    return Splits(size, -(-steps // size))


def counters(tiles: int, device: torch.device) -> Tensor:
    """Zero before and after each launch; launches that share them must not overlap."""
    return torch.zeros(tiles, dtype=torch.int32, device=device)


@jit
def finish(
    sums,
    bias,
    partial_sums,
    counters,
    out,
    row,
    output,
    rows,
    outputs,
    tile,
    split_index,
    SPLITS: tl.constexpr,
    BIAS: tl.constexpr,
    AMD: tl.constexpr,
):
    """Stores ``sums`` [OUTPUTS, ROWS] or, if this program is its tile's last, their sum over all splits."""
    mask = (output < outputs)[:, None] & (row < rows)[None, :]
    offsets = row.to(tl.int64)[None, :] * outputs + output[:, None]
    last = True
    if SPLITS > 1:
        size = rows.to(tl.int64) * outputs
        tl.store(partial_sums + split_index * size + offsets, sums, mask)
        # All threads' stores must be visible before the counter is increased.
        if AMD:
            # On AMD a barrier does not wait for global stores, and the atomic releases only its own wave's.
            tl.inline_asm_elementwise("s_waitcnt vmcnt(0)", "=v,0", [output], tl.int32, is_pure=False, pack=1)
        tl.debug_barrier()
        last = tl.atomic_add(counters + tile, 1, sem="acq_rel") == SPLITS - 1
        if last:
            tl.store(counters + tile, 0)
            sums = tl.zeros_like(sums)
            for other in tl.range(0, SPLITS, loop_unroll_factor=4):
                sums += tl.load(partial_sums + other * size + offsets, mask, other=0.0, cache_modifier=".cg")
    if last:
        if BIAS:
            sums += tl.load(bias + output, output < outputs, other=0.0).to(tl.float32)[:, None]
        tl.store(out + offsets, sums.to(out.dtype.element_ty), mask)
