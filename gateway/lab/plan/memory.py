"""What a chip's memory holds: weights, a step's activations, and blocks of keys and values from the rest."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.lab.plan.precision import Precision
from gateway.lab.plan.shape import ModelShape
from gateway.lab.plan.step_clock import COMPUTE_BYTES, weight_bytes

RESERVED = 0.05
"""Share of a chip's memory for fragmentation and other processes, as engine/worker/kv_cache_size.py leaves it,"""
RUNTIME = 1.5e9
"""and bytes for the driver's context, libraries' workspaces and graphs: an assumption."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one chip."""

    total: float
    weights: float
    activations: float
    reserved: float

    @property
    def cache(self) -> float:
        """For keys, values and states; below 0 where the weights do not fit."""
        return self.total - self.weights - self.activations - self.reserved


def chip_memory(
    shape: ModelShape, precision: Precision, ranks: int, total: float, step_tokens: int
) -> Memory:
    dense, head, experts = weight_bytes(shape, precision)
    if shape.stored_bytes is not None and precision.name in (shape.stored, shape.dtype) and ranks == 1:
        weights = float(shape.stored_bytes)
    else:
        looked_up = 0.0 if shape.tied else shape.embedding * COMPUTE_BYTES
        weights = (dense + experts) / ranks + head + looked_up
    # The widest layer's inputs and outputs in 16 bits, some four of them at a time, and logits in float32.
    widest = max(shape.hidden * 4, shape.attention.heads * shape.attention.head_dim * 3)
    activations = step_tokens * widest * COMPUTE_BYTES * 4 / ranks
    activations += 256 * (shape.head / shape.hidden) * 4
    return Memory(total, weights, activations, RESERVED * total + RUNTIME)
