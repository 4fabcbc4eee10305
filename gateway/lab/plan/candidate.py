"""One way to serve the model: a chip, how many share a copy, and how weights are kept; and what bounds it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.lab.plan.chips import Chip
from gateway.lab.plan.memory import Memory, chip_memory
from gateway.lab.plan.precision import Precision, kv_layer_bytes
from gateway.lab.plan.shape import ModelShape
from gateway.lab.plan.simulator import Simulator
from gateway.lab.plan.step_clock import COMPUTE_BYTES, Efficiency, StepClock, step_clock
from gateway.lab.plan.workload import MONTH, Workload

_AIM = 0.9
"""Share of the target for the gaps between tokens that steps with prompts are to take,"""
_ALIKE = 2.5
"""if that is more than this many times a step without them: else the engine's own bound does."""
HOURS = MONTH / 3600


@dataclass(frozen=True, slots=True)
class Serving:
    """The engine's settings, as ``python -m engine serve`` has them on a GPU."""

    max_num_seqs: int = 256
    max_batched_tokens: int = 2048
    block_size: int = 16
    max_itl_ratio: float = 2.0
    tuned: bool = False
    """Whether that is chosen for the targets."""
    kv_dtype: str = "bf16"


@dataclass(frozen=True)
class Candidate:
    shape: ModelShape
    chip: Chip
    ranks: int
    precision: Precision
    serving: Serving
    memory: Memory
    clock: StepClock
    block_bytes: int
    """Of one rank."""
    blocks: int
    groups: tuple[int | None, ...]
    """Windows of the groups of layers, each with block tables of its own."""
    longest: int
    """Tokens of the longest request."""
    request_delay: float
    """Seconds of a request outside of steps."""

    @property
    def name(self) -> str:
        chips = f"{self.ranks} x {self.chip.name}" if self.ranks > 1 else self.chip.name
        return f"{chips}, {self.precision.name}"

    @property
    def usd_per_month(self) -> float:
        """Of one replica."""
        return self.ranks * self.chip.usd_per_hour * HOURS

    @property
    def machine(self) -> Mapping[str, Any]:
        return {
            "blocks": self.blocks,
            "max_num_seqs": self.serving.max_num_seqs,
            "max_batched_tokens": self.serving.max_batched_tokens,
            "max_model_len": self.longest + 1,
            "block_size": self.serving.block_size,
            "windows": self.groups,
            "max_itl_ratio": self.serving.max_itl_ratio,
            "stateful": self.shape.state_values + self.shape.state_sums > 0,
        }

    def tuned(self, rate: float, workload: Workload, bounds: Mapping[str, float]) -> list[Candidate]:
        """With each ``max_itl_ratio`` that may do at ``rate`` requests a second: the engine's own, and one by which
        steps with prompts in them just keep the target for gaps; none where there is no such target."""
        if not self.serving.tuned:
            return [self]
        itl = bounds.get("itl") or bounds.get("tpot")
        ratio = 0.0
        if itl is not None:
            batch, step = 1.0, 0.0
            for _ in range(20):
                step = self.clock.seconds(self.clock.decode(batch, workload.mean_prompt))
                batch = max(1.0, min(self.serving.max_num_seqs, rate * workload.mean_output * step))
            ratio = max(0.0, round(_AIM * itl / step, 1))
        ratios = [self.serving.max_itl_ratio, *([ratio] if ratio == 0 or ratio > _ALIKE else [])]
        return [
            replace(self, serving=replace(self.serving, max_itl_ratio=one, tuned=False)) for one in ratios
        ]

    def blocks_of(self, tokens: float) -> float:
        """In all groups of layers."""
        size = self.serving.block_size
        return sum(
            math.ceil((tokens if window is None else min(tokens, window + size)) / size)
            for window in self.groups
        )

    def capacity(self, workload: Workload, hits: float, itl: float | None) -> tuple[float, int]:
        """Requests a second of one replica that no schedule exceeds, and with how many at a time.

        So many steps as an answer has tokens gain one token for each of a batch, and compute as many prompts. Weights
        are read once a step; a step's arithmetic hides behind that, or the other way around.
        """
        prompt, output = workload.mean_prompt * (1 - hits), workload.mean_output
        context = workload.mean_prompt + output / 2
        best, at = 0.0, 1
        fitting = max(1.0, self.blocks / self.blocks_of(context))
        for batch in _batches(min(self.serving.max_num_seqs, int(fitting))):
            decode = self.clock.bounds(self.clock.decode(batch, context))
            if itl is not None and sum(map(max, decode)) > itl and batch > 1:
                break
            prefill = self.clock.bounds(self.clock.prefill(prompt))
            (reading, computing), (cache, scores), *rest = decode
            (_, chunk), (_, chunk_scores), *_ = prefill
            seconds = max(output * reading, output * computing + batch * chunk)
            seconds += max(output * cache, output * scores + batch * chunk_scores)
            seconds += output * sum(map(sum, rest))
            if batch / seconds > best:
                best, at = batch / seconds, batch
        return best, at


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a way to serve is none."""

    name: str
    reason: str


def candidate(
    shape: ModelShape,
    chip: Chip,
    ranks: int,
    precision: Precision,
    *,
    serving: Serving,
    reached: Efficiency,
    longest: int,
    simulator: Simulator,
) -> Candidate | Misfit:
    """``longest``: tokens of the longest request that there is to be."""
    name = f"{ranks} x {chip.name}, {precision.name}" if ranks > 1 else f"{chip.name}, {precision.name}"
    attention = shape.attention
    if attention.latent is None and (attention.kv_heads % ranks or attention.heads % ranks):
        return Misfit(name, f"{ranks} ranks cannot share {attention.kv_heads} KV heads evenly")
    memory = chip_memory(shape, precision, ranks, chip.memory, serving.max_batched_tokens)
    if memory.cache <= 0:
        needed = memory.total - memory.cache
        return Misfit(
            name,
            f"memory: it needs {needed / 1e9:.1f} GB before any KV cache, and has {memory.total / 1e9:.0f}",
        )
    layer_bytes = kv_layer_bytes(
        serving.kv_dtype, attention.kept_on_rank(ranks), attention.head_dim, attention.latent
    )
    told = simulator.memory(
        windows=list(shape.windows),
        layer_bytes=layer_bytes,
        block_size=serving.block_size,
        longest=longest,
        step_tokens=serving.max_batched_tokens,
    )
    # The engine's: of each sequence, of half as many prefixes, and a spare one.
    slots = serving.max_num_seqs + serving.max_num_seqs // 2 + 1
    states = slots * shape.state_bytes(COMPUTE_BYTES)
    blocks = int((memory.cache - states) // told["block_bytes"])
    if blocks < told["request_blocks"]:
        return Misfit(
            name,
            f"memory: {max(blocks, 0):,} KV blocks remain, and the longest request ({longest:,} tokens) takes "
            f"{told['request_blocks']:,}",
        )
    clock = step_clock(shape, chip, ranks, precision, layer_bytes, reached)
    return Candidate(
        shape,
        chip,
        ranks,
        precision,
        serving,
        memory,
        clock,
        told["block_bytes"],
        # No more than all that can run at the same time would fill.
        min(blocks, serving.max_num_seqs * told["request_blocks"]),
        tuple(told["windows"]),
        longest,
        reached.request,
    )


def _batches(most: int) -> list[int]:
    sizes = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
    return sorted({*(size for size in sizes if size < most), max(1, most)})
