"""The traffic that is planned for: recorded, or drawn from distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path
from random import Random

from gateway.lab.bench.lengths import Lengths
from gateway.lab.plan.errors import PlanError
from gateway.lab.traffic.reading import TrafficError, read_traffic

MONTH = 730 * 3600.0
"""Seconds of a twelfth of a year."""
_MOST = 2_000_000
_HASHED = 512


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float
    """Seconds."""
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """The prompt's hash chain."""


@dataclass(frozen=True)
class Volume:
    """Tokens of a month."""

    requests: float
    prompt: float
    output: float
    cached: float = 0.0
    """Of the prompt's, as a provider's cache had them; only where it was counted."""
    source: str = ""

    @property
    def tokens(self) -> float:
        return self.prompt + self.output


@dataclass(frozen=True)
class Workload:
    """``arrivals`` in order of time, from 0 on; where ``drawn``, more of their kind can be had."""

    name: str
    arrivals: Sequence[Arrival]
    block_tokens: int = _HASHED
    rate: float | None = None
    """Requests a second, where arrivals are drawn by ``seed``."""
    seed: int = 0
    sample: int = 1500
    """Requests that a simulation of one replica has at most."""

    @cached_property
    def mean_prompt(self) -> float:
        return sum(one.prompt_tokens for one in self.arrivals) / len(self.arrivals)

    @cached_property
    def mean_output(self) -> float:
        return sum(one.output_tokens for one in self.arrivals) / len(self.arrivals)

    @cached_property
    def longest(self) -> int:
        return max(one.prompt_tokens + one.output_tokens for one in self.arrivals)

    @property
    def mean_rate(self) -> float:
        """Requests a second over all of it."""
        span = self.arrivals[-1].at - self.arrivals[0].at
        return self.rate or (len(self.arrivals) / span if span > 0 else float(len(self.arrivals)))

    def volume(self) -> Volume:
        """Of a month of this."""
        requests = self.mean_rate * MONTH
        return Volume(requests, requests * self.mean_prompt, requests * self.mean_output, source=self.name)

    @cached_property
    def fresh_tokens(self) -> Sequence[int]:
        """Of each prompt, the tokens that a cache without bounds would not have; one at least."""
        seen: set[int] = set()
        found = []
        for one in self.arrivals:
            known = next(
                (place for place, block in enumerate(one.blocks) if block not in seen), len(one.blocks)
            )
            found.append(max(1, one.prompt_tokens - known * self.block_tokens))
            seen.update(one.blocks)
        return found

    @cached_property
    def hits(self) -> float:
        """The share of prompts' tokens that a cache without bounds would have."""
        total = sum(one.prompt_tokens for one in self.arrivals)
        return 1 - sum(self.fresh_tokens) / total

    def share(self, replicas: int, most: int) -> Sequence[Arrival]:
        """One replica's part of the busiest stretch, at most ``most`` requests of it: dealt in turn, or, where prompts
        have beginnings in common, by conversation, as the gateway does it; then the replica with the most tokens."""
        stretch = self._stretch(most * replicas)
        hands: list[list[Arrival]] = [[] for _ in range(replicas)]
        for number, one in enumerate(stretch):
            # The first block is often a system prompt's.
            hand = hash(one.blocks[min(1, len(one.blocks) - 1)]) if one.blocks else number
            hands[hand % replicas].append(one)
        busiest = max(hands, key=lambda rows: sum(one.prompt_tokens + one.output_tokens for one in rows))
        first = stretch[0].at
        return [replace(one, at=one.at - first) for one in busiest[:most]]

    def peak_rate(self, count: int) -> float:
        """Requests a second in the busiest stretch of so many."""
        stretch = self._stretch(count)
        span = stretch[-1].at - stretch[0].at
        return self.rate or (len(stretch) / span if span > 0 else float(len(stretch)))

    def _stretch(self, count: int) -> Sequence[Arrival]:
        if self.rate is not None:
            drawn = Random(self.seed)
            times = accumulate(drawn.expovariate(self.rate) for _ in range(count))
            rows = self.arrivals
            return [replace(rows[number % len(rows)], at=at) for number, at in enumerate(times)]
        if count >= len(self.arrivals):
            return self.arrivals
        sums = [0, *accumulate(one.prompt_tokens + one.output_tokens for one in self.arrivals)]

        def intensity(start: int) -> float:
            span = self.arrivals[start + count - 1].at - self.arrivals[start].at
            return (sums[start + count] - sums[start]) / max(span, 1e-3)

        starts = range(0, len(self.arrivals) - count + 1, max(1, count // 20))
        start = max(starts, key=intensity)
        return self.arrivals[start : start + count]

    def scaled(self, *, rate: float = 1.0, prompts: float = 1.0, outputs: float = 1.0) -> Workload:
        """So many times the requests a second, or the tokens."""
        rows = [
            Arrival(
                one.at / rate,
                max(1, round(one.prompt_tokens * prompts)),
                max(1, round(one.output_tokens * outputs)),
                one.blocks if prompts == 1 else (),
            )
            for one in self.arrivals
        ]
        return replace(self, arrivals=rows, rate=self.rate and self.rate * rate)


def recorded(
    path: Path, *, model: str | None = None, rate: float | None = None, speed: float = 1.0, seed: int = 0
) -> Workload:
    """Of a trace, the requests that a model answered; with ``rate`` its lengths alone count. Raises ``PlanError``."""
    rows: list[Arrival] = []
    block_tokens = _HASHED
    try:
        for one in islice(read_traffic(path), _MOST):
            if model is not None and model not in (one.model, one.answered):
                continue
            if one.outcome == "refused" or one.cache in ("exact", "semantic"):
                continue  # no model was asked
            output = one.completion_tokens
            if not one.prompt_tokens and not output:
                continue
            block_tokens = one.block_tokens or block_tokens
            rows.append(Arrival(one.at, max(1, one.prompt_tokens or 1), max(1, output or 1), one.blocks))
    except TrafficError as error:
        raise PlanError(f"--trace: {error}") from None
    if not rows:
        of_model = f" of the model '{model}'" if model is not None else ""
        raise PlanError(f"--trace {path}: no requests with tokens{of_model} in it")
    rows.sort(key=lambda one: one.at)
    first = rows[0].at
    rows = [replace(one, at=(one.at - first) / speed) for one in rows]
    if rate is not None:
        return Workload(
            f"lengths of {path.name}", [replace(one, blocks=()) for one in rows], rate=rate, seed=seed
        )
    return Workload(path.name if str(path) != "-" else "the input", rows, block_tokens)


def drawn(prompts: Lengths, outputs: Lengths, rate: float, seed: int, count: int = 4000) -> Workload:
    """Independent arrivals (Poisson)."""
    random = Random(seed)
    rows = [Arrival(0.0, prompts.draw(random), outputs.draw(random)) for _ in range(count)]
    return Workload("drawn lengths", rows, rate=rate, seed=seed)
