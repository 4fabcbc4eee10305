"""A candidate with so many replicas, simulated: who is within the targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.lab.bench.percentiles import percentile
from gateway.lab.plan.candidate import Candidate
from gateway.lab.plan.simulator import Simulator
from gateway.lab.plan.step_clock import LIMITS
from gateway.lab.plan.workload import Workload

TOKENS = 150_000
"""Output tokens of a simulation, at most; where prompts have hashes a tenth of theirs, too, which takes as long,"""
LEAST = 200
"""and requests, at least."""
FULL = 0.97
"""Share of the KV blocks from which memory is what binds."""


@dataclass(frozen=True)
class Trial:
    candidate: Candidate
    replicas: int
    requests: int
    share: float
    """Of the requests, those within all targets, in the worse half of the time."""
    kept: Mapping[str, float]
    """The same for each target."""
    figures: Mapping[str, Mapping[str, float]]
    """``ttft``, ``itl``, ``tpot``, ``e2e``, ``queued``: p50, p95, p99 in seconds, over requests."""
    batch: float
    """Requests in a step, on average over time."""
    busy: float
    """Share of the time in steps."""
    kv_mean: float
    kv_max: float
    preempted: int
    hits: float
    limits: Mapping[str, float]
    """Share of the busy time by what it was bound by."""
    rate: float
    """Requests a second of one replica."""
    stopped: bool = False
    """Whether it ended when too many were beyond their targets."""

    def met(self, wanted: float) -> bool:
        return self.share >= wanted and not self.stopped

    @property
    def limit(self) -> str:
        """What most of the time is bound by."""
        if self.kv_max >= FULL and self.preempted:
            return "memory (KV blocks)"
        return max(self.limits, key=self.limits.__getitem__)


def requests_for(workload: Workload) -> int:
    tokens = workload.mean_output + (workload.mean_prompt / 10 if workload.hits else 0.0)
    return min(workload.sample, max(LEAST, round(TOKENS / tokens)))


def attempt(
    candidate: Candidate,
    workload: Workload,
    replicas: int,
    bounds: Mapping[str, float],
    simulator: Simulator,
    wanted: float = 0.0,
) -> Trial:
    """``wanted``: the share of requests within ``bounds`` below which nothing more is to be known of it; 0: all is."""
    arrivals = workload.share(replicas, requests_for(workload))
    delay = candidate.request_delay
    patience = {name: bounds[name] for name in ("ttft", "itl") if name in bounds}
    if "ttft" in patience:
        patience["ttft"] -= delay
    told = simulator.run(
        arrivals,
        workload.block_tokens,
        candidate.machine,
        candidate.clock.told(),
        {"share": 1 - wanted, **patience} if wanted else None,
    )
    columns: dict[str, list[float | None]] = {name: told[name] for name in ("itl", "tpot", "queued")}
    for name in ("ttft", "e2e"):
        columns[name] = [None if value is None else value + delay for value in told[name]]
    refused = [value is None for value in told["e2e"]]
    half = len(arrivals) // 2
    parts = (slice(0, half), slice(half, None)) if half >= 50 else (slice(None),)
    kept = {
        name: min(_within(columns[name], bound, refused, part) for part in parts)
        for name, bound in bounds.items()
    }
    good = [
        not gone
        and all(columns[name][row] is None or columns[name][row] <= bound for name, bound in bounds.items())  # type: ignore[operator]
        for row, gone in enumerate(refused)
    ]
    times = _limits(told["parts"])
    busy = sum(times.values()) or 1.0
    blocks = candidate.blocks
    return Trial(
        candidate=candidate,
        replicas=replicas,
        requests=len(arrivals),
        share=min(_mean(good[part]) for part in parts),
        kept=kept,
        figures={name: _percentiles(values) for name, values in columns.items()},
        batch=told["sequences"],
        busy=min(1.0, told["busy"] / told["seconds"]) if told["seconds"] else 0.0,
        kv_mean=told["blocks_mean"] / blocks,
        kv_max=told["blocks_max"] / blocks,
        preempted=told["preempted"],
        hits=sum(told["hits"]) / max(1, sum(one.prompt_tokens for one in arrivals)),
        limits={name: seconds / busy for name, seconds in times.items()},
        rate=workload.peak_rate(len(arrivals) * replicas) / replicas,
        stopped=bool(wanted) and told["late"] > (1 - wanted) * len(arrivals),
    )


def _within(values: Sequence[float | None], bound: float, refused: Sequence[bool], part: slice) -> float:
    good = [
        not gone and (value is None or value <= bound)
        for value, gone in zip(values[part], refused[part], strict=True)
    ]
    return _mean(good)


def _mean(good: Sequence[bool]) -> float:
    return sum(good) / len(good) if good else 0.0


def _percentiles(values: Sequence[float | None]) -> Mapping[str, float]:
    ordered = sorted(value for value in values if value is not None)
    return {f"p{percent}": percentile(ordered, percent) for percent in (50, 95, 99)} if ordered else {}


def _limits(parts: Sequence[Sequence[float]]) -> dict[str, float]:
    """Seconds by the name of the bound that they are."""
    found: dict[str, float] = {}
    for names, seconds in zip(LIMITS, parts, strict=True):
        for name, value in zip(names, seconds, strict=True):
            found[name] = found.get(name, 0.0) + value
    return found


def told(trial: Trial) -> dict[str, Any]:
    """As JSON."""
    candidate = trial.candidate
    return {
        "name": candidate.name,
        "chip": candidate.chip.name,
        "tensor_parallel": candidate.ranks,
        "quantization": candidate.precision.name,
        "replicas": trial.replicas,
        "max_num_seqs": candidate.serving.max_num_seqs,
        "max_itl_ratio": candidate.serving.max_itl_ratio,
        "kv_blocks": candidate.blocks,
        "kv_block_bytes": candidate.block_bytes,
        "weights_bytes_per_chip": round(candidate.memory.weights),
        "usd_per_month": trial.replicas * candidate.usd_per_month,
        "within_targets": trial.share,
        "kept": dict(trial.kept),
        "seconds": {name: dict(figures) for name, figures in trial.figures.items()},
        "batch": trial.batch,
        "busy": trial.busy,
        "kv_mean": trial.kv_mean,
        "kv_max": trial.kv_max,
        "preempted": trial.preempted,
        "prefix_hits": trial.hits,
        "limit": trial.limit,
        "time_by_limit": dict(trial.limits),
        "requests_per_second_per_replica": trial.rate,
        "simulated_requests": trial.requests,
    }
