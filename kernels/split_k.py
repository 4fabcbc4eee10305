"""Sums over the inputs in fixed pieces: what the linear kernels for small batches share.

A product of few rows has few outputs to hand out, so the inputs are split too. Each program stores its piece's sums in
float32; the last of a tile to arrive, which an integer counter tells, adds up the pieces in their order. So the size
and the order of the pieces come from the weight's shape alone, whatever the rows, and one launch is enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.launch import jit, tl

PROGRAMS = {"sm_80": 432, "sm_90": 528, "sm_100": 592, "gfx942": 1216}
"""How many a launch should have at least: four for each multiprocessor."""
MOST = 16
"""Splits of the inputs."""
LEAST = 2
"""Steps that a program walks at least, so that there is something to load ahead."""


@dataclass(frozen=True, slots=True)
class Splits:
    steps: int
    """That a program walks; the last one of a tile may have fewer."""
    count: int


def split(tiles: int, steps: int, arch: str) -> Splits:
    """Of ``steps`` along the inputs, where the outputs have ``tiles``."""
    wanted = min(MOST, -(-PROGRAMS[arch] // tiles))
    size = max(LEAST, -(-steps // wanted))
    return Splits(size, -(-steps // size))


def counters(tiles: int, device: torch.device) -> Tensor:
    """Zero before and after each launch; launches that share them must follow one another."""
    return torch.zeros(tiles, dtype=torch.int32, device=device)


@jit
def finish(
    sums,
    bias,
    pieces,
    counters,
    out,
    row,
    output,
    rows,
    outputs,
    tile,
    piece,
    SPLITS: tl.constexpr,
    BIAS: tl.constexpr,
    AMD: tl.constexpr,
):
    """Stores ``sums`` [OUTPUTS, ROWS], or their total over the splits if this program is its tile's last."""
    inside = (output < outputs)[:, None] & (row < rows)[None, :]
    where = row.to(tl.int64)[None, :] * outputs + output[:, None]
    last = True
    if SPLITS > 1:
        size = rows.to(tl.int64) * outputs
        tl.store(pieces + piece * size + where, sums, inside)
        # All threads' stores before the one thread's count.
        if AMD:
            # There a barrier waits for no stores to global memory, and what counts releases its own wave's alone.
            tl.inline_asm_elementwise("s_waitcnt vmcnt(0)", "=v,0", [output], tl.int32, is_pure=False, pack=1)
        tl.debug_barrier()
        last = tl.atomic_add(counters + tile, 1, sem="acq_rel") == SPLITS - 1
        if last:
            tl.store(counters + tile, 0)
            sums = tl.zeros_like(sums)
            for other in tl.range(0, SPLITS, loop_unroll_factor=4):
                sums += tl.load(pieces + other * size + where, inside, other=0.0, cache_modifier=".cg")
    if last:
        if BIAS:
            sums += tl.load(bias + output, output < outputs, other=0.0).to(tl.float32)[:, None]
        tl.store(out + where, sums.to(out.dtype.element_ty), inside)
