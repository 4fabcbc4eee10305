"""An engine's steps, by ``tollgate plan``'s roofline: bounds, not measurements."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.lab.plan.chips import read_chips
from gateway.lab.plan.errors import PlanError
from gateway.lab.plan.memory import chip_memory
from gateway.lab.plan.model import read_model
from gateway.lab.plan.precision import kv_layer_bytes
from gateway.lab.plan.precision import precision as named
from gateway.lab.plan.step_clock import (
    KINDS,
    SAMPLES,
    SEQUENCES,
    STEPS,
    TOKENS,
    Efficiency,
    step_clock,
)

LLAMA_8B = "params=8.03B,layers=32,kv_heads=8,head_dim=128,heads=32,hidden=4096,vocab=128256"
BATCHED = 2048
"""Tokens of a step at most, as the engine has it."""


@dataclass(frozen=True, slots=True)
class Machine:
    name: str
    weights: float
    """Seconds in which a step reads the weights,"""
    token: float
    """computes a token's products,"""
    cached: float
    """reads a token's keys and values,"""
    pair: float
    """attends from one token to another, in all layers;"""
    step: float
    """and beside,"""
    sequence: float
    """and of each request in it."""
    request: float
    """Of each request outside of steps."""
    tokens: int
    """That the KV cache holds."""
    max_num_seqs: int = 256
    max_batched_tokens: int = BATCHED
    max_itl_ratio: float = 2.0

    def decode(self, sequences: float, context: float) -> float:
        """Seconds of a step in which so many gain a token; ``context``: tokens that they have together."""
        products = max(self.weights, self.token * sequences)
        return products + self.cached * context + self.step + self.sequence * sequences

    def chunk(self, sequences: float, context: float) -> tuple[float, float]:
        """Of a step that also computes a part of a prompt: its tokens, and the seconds of the step.

        As the engine chunks: no step takes more than ``max_itl_ratio`` times as long as without the prompt.
        """
        most = max(1.0, self.max_batched_tokens - sequences)
        if sequences:
            allowed = self.max_itl_ratio * self.decode(sequences, context)
            spare = allowed - self.step - self.sequence * (sequences + 1) - self.cached * context
            most = min(most, max(16.0, spare / self.token - sequences))
        products = max(self.weights, self.token * (sequences + most))
        attention = max(self.cached * context, self.pair * most * most / 2)
        return most, products + attention + self.step + self.sequence * (sequences + 1)

    def throughput(self, prompt: float, answer: float, batch: float) -> float:
        """Requests a second at a steady batch: each step's decoding, and the arithmetic of prompts beside it."""
        decode = self.decode(batch, batch * (prompt + answer / 2))
        spare = max(0.0, self.weights - self.token * batch)
        prefill = max(0.0, prompt * self.token * batch / answer - spare)
        return batch / (answer * (decode + prefill) + self.request)

    def most(self, prompt: float, answer: float) -> float:
        """Requests a second at the best batch."""
        batches = range(8, self.max_num_seqs + 1, 8)
        return max(self.throughput(prompt, answer, batch) for batch in batches)


def roofline(chip: str = "h100", model: str = LLAMA_8B, precision: str = "fp8") -> Machine:
    """Raises ``PlanError``."""
    chips = read_chips(None)
    if chip not in chips:
        raise PlanError(f"--chip: '{chip}' is not known; these are: {', '.join(chips)}")
    shape, gpu, kept, reached = read_model(model), chips[chip], named(precision, "--precision"), Efficiency()
    attention = shape.attention
    layer_bytes = kv_layer_bytes("bf16", attention.kept_on_rank(1), attention.head_dim, attention.latent)
    clock = step_clock(shape, gpu, 1, kept, layer_bytes, reached)
    (reading, computing), (cache, scores), _, (overhead,) = clock.operators
    memory = chip_memory(shape, kept, 1, gpu.memory, BATCHED)
    if memory.cache <= 0:
        raise PlanError(f"--chip {chip}: the model's weights do not fit into it")
    return Machine(
        f"{chip}, {precision}",
        weights=reading[STEPS],
        token=computing[TOKENS],
        cached=cache[KINDS],
        pair=scores[KINDS + 1],
        step=overhead[STEPS],
        sequence=overhead[SEQUENCES] + computing[SAMPLES],
        request=reached.request,
        tokens=int(memory.cache / (shape.layers * layer_bytes)),
    )
