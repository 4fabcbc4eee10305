"""How long a step takes on a machine: a roofline for each kind of operator (https://doi.org/10.1145/1498765.1498785).

An operator takes as long as its memory traffic or its arithmetic, whichever is longer, and one follows the other:

    step     = products + attention + links + overhead
    products = max(bytes of the weights that are read / bandwidth, 2 · active parameters · tokens / FLOPs)
    attention = max(bytes of keys and values that are read / bandwidth, FLOPs of all pairs of query and key / FLOPs)

``docs/lab.md`` has the formulas. The engine's side (``python -m engine simulate``) computes the same sum from the
bounds of ``StepClock.told``: seconds a unit of each of a step's features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.lab.plan.chips import Chip
from gateway.lab.plan.precision import Precision
from gateway.lab.plan.shape import ModelShape

STEPS, TOKENS, SEQUENCES, SAMPLES, EXPERTS, KINDS = range(6)
"""Places of a step's features. From ``KINDS`` on, two for each kind of layers: cached tokens read, and pairs."""
OPERATORS = ("products", "attention", "links", "overhead")
LIMITS = (
    ("memory bandwidth (weights)", "compute (products)"),
    ("memory bandwidth (keys and values)", "compute (attention)"),
    ("links between chips",),
    ("overhead of steps",),
)
"""Names of the operators' bounds."""
COMPUTE_BYTES = 2
"""Of activations, which are summed over ranks in 16 bits."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What of a chip's figures is reached, and what they leave out. The defaults are assumptions, to be replaced by a
    calibration: kernels reach most of the bandwidth, large products about half of the FLOPs."""

    bandwidth: float = 0.8
    compute: float = 0.55
    step: float = 1e-3
    """Seconds of each step: launching, scheduling, sampling."""
    sequence: float = 2e-5
    """Seconds of each request in a step."""
    request: float = 5e-3
    """Seconds of each request outside of steps: HTTP, template, tokens. They are part of its first token's time."""
    all_reduce: float = 1e-5
    """Seconds of each sum over ranks, beside its bytes."""


IDEAL = Efficiency(1.0, 1.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Step:
    """What is in a step; ``reads`` and ``pairs`` of each kind of layers."""

    tokens: float
    sequences: float
    samples: float
    reads: Sequence[float]
    pairs: Sequence[float]


@dataclass(frozen=True, slots=True)
class StepClock:
    operators: Sequence[Sequence[Sequence[float]]]
    windows: Sequence[int | None]
    missed: float
    """The share of experts that one token does not take."""

    def told(self) -> Mapping[str, Any]:
        return {"operators": self.operators, "windows": self.windows, "missed": self.missed}

    def seconds(self, step: Step) -> float:
        return sum(max(bounds) for bounds in self.bounds(step))

    def bounds(self, step: Step) -> list[list[float]]:
        """Seconds of each operator by each of its bounds."""
        features = [1.0, step.tokens, step.sequences, step.samples, 1.0 - self.missed**step.tokens]
        for read, pair in zip(step.reads, step.pairs, strict=True):
            features += (read, pair)
        return [
            [sum(a * b for a, b in zip(bound, features, strict=True)) for bound in bounds]
            for bounds in self.operators
        ]

    def decode(self, sequences: float, context: float) -> Step:
        """Each of ``sequences`` gains a token after ``context`` others."""
        reads = [sequences * (context if window is None else min(context, window)) for window in self.windows]
        return Step(sequences, sequences, sequences, reads, reads)

    def prefill(self, tokens: float, before: float = 0.0) -> Step:
        """A chunk of a prompt after ``before`` tokens of it, the last one."""
        reads, pairs = [], []
        for window in self.windows:
            most = before + tokens if window is None else min(before + tokens, window + tokens)
            reads.append(most)
            whole = tokens * (before + tokens / 2)
            pairs.append(whole if window is None else min(whole, tokens * window))
        return Step(tokens, 1, 1, reads, pairs)


def weight_bytes(shape: ModelShape, precision: Precision) -> tuple[float, float, float]:
    """Of what all tokens are multiplied with, of the head, and of all experts. The head stays in 16 bits unless the
    checkpoint says otherwise, as it does in the engine and most quantized checkpoints."""
    each = precision.bits / 8
    alone = each if precision.name in ("as stored", "fp32") else 2.0
    experts = shape.mixture.total * each if shape.mixture else 0.0
    return shape.dense * each, shape.head * alone, experts


def step_clock(
    shape: ModelShape, chip: Chip, ranks: int, precision: Precision, layer_bytes: float, reached: Efficiency
) -> StepClock:
    """``layer_bytes``: that one layer keeps of a token, on one rank."""
    kinds = shape.window_counts
    size = KINDS + 2 * len(kinds)
    bandwidth = chip.bandwidth * reached.bandwidth
    products, attention = (chip.speed(name) * reached.compute for name in (precision.speed, "bf16"))
    dense, head, experts = weight_bytes(shape, precision)

    def bound(**features: float) -> list[float]:
        found = [0.0] * size
        for name, value in features.items():
            found[_PLACES[name]] = value
        return found

    mixture = shape.mixture
    # Embedding and head are on every rank whole.
    reading = bound(steps=(dense / ranks + head) / bandwidth, experts=experts / ranks / bandwidth)
    active = shape.dense + (mixture.active if mixture else 0)
    computing = bound(tokens=2 * active / ranks / products, samples=2 * shape.head / products)
    cache = bound(sequences=2 * shape.state_bytes(COMPUTE_BYTES) / bandwidth)
    scores = bound()
    for kind, (_, layers) in enumerate(kinds):
        cache[KINDS + 2 * kind] = layers * layer_bytes / bandwidth
        scores[KINDS + 2 * kind + 1] = layers * shape.attention.pair_flops / ranks / attention
    # A ring: each of two sums a layer sends its bytes nearly twice (https://arxiv.org/abs/1909.08053).
    sums = 2 * shape.layers if ranks > 1 else 0
    sent = sums * shape.hidden * COMPUTE_BYTES * 2 * (ranks - 1) / ranks
    links = bound(steps=sums * reached.all_reduce, tokens=sent / chip.link)
    overhead = bound(steps=reached.step, sequences=reached.sequence)
    return StepClock(
        ((reading, computing), (cache, scores), (links,), (overhead,)),
        tuple(window for window, _ in kinds),
        1.0 - mixture.chosen / mixture.count if mixture else 1.0,
    )


_PLACES = {"steps": STEPS, "tokens": TOKENS, "sequences": SEQUENCES, "samples": SAMPLES, "experts": EXPERTS}
