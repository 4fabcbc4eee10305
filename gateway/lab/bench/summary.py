"""What the samples of one server under one load come to. docs/lab.md has the definitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from gateway.lab.bench.load import Load
from gateway.lab.bench.percentiles import described, percentile
from gateway.lab.bench.run import Run
from gateway.lab.bench.sample import Failure, Sample
from gateway.lab.bench.server import Server
from gateway.lab.bench.slo import Slo

LATE = 0.005
"""Seconds of the client's own lag (p99) from which it says so,"""
LATE_SHARE = 0.1
"""unless they are less than this share of the median latency."""
BUSY = 0.85
"""The share of a processor from which the client may be what is measured."""
LATENCIES: dict[str, Callable[[Sample], float | None]] = {
    "ttft": lambda sample: sample.ttft,
    "tpot": lambda sample: sample.tpot,
    "e2e": lambda sample: sample.e2e,
}


@dataclass(frozen=True)
class Result:
    """One server under one load, in all rounds."""

    server: Server
    load: Load
    slo: Slo
    runs: Sequence[Run]

    @property
    def counted(self) -> list[Sample]:
        return [sample for run in self.runs for sample in _counted(run)]

    @property
    def rate(self) -> float:
        """Requests a second, in the end; 0 where the load is none."""
        return self.load.rate.last if self.load.rate is not None else 0.0

    @property
    def share(self) -> float:
        """Of the requests, those that met the SLO; 0 of none."""
        counted = self.counted
        return sum(map(self.slo.met, counted)) / len(counted) if counted else 0.0

    @property
    def seconds(self) -> float:
        """From when the first counted request of each run was to be sent to the last one's end."""
        return sum(map(_span, map(_counted, self.runs)))

    def summary(self) -> dict[str, Any]:
        counted, seconds = self.counted, self.seconds
        good = [sample for sample in counted if sample.ok]
        met = sum(map(self.slo.met, counted))
        per_second = (lambda number: number / seconds) if seconds else (lambda number: 0.0)
        output = sum(sample.output_tokens for sample in good)
        prompt = sum(sample.prompt_tokens or 0 for sample in good)
        chunks = sum(sample.chunks for sample in good)
        return {
            "server": self.server.name,
            "url": self.server.url,
            "model": self.server.model,
            "api": self.server.api.name,
            "load": str(self.load),
            "rate": self.rate or None,
            "concurrency": self.load.concurrency,
            "seconds": seconds,
            "rounds": len(self.runs),
            "requests": {
                "counted": len(counted),
                "ok": len(good),
                "failed": len(counted) - len(good),
                "warm_up": sum(sample.warm_up for run in self.runs for sample in run.samples),
                "interrupted": sum(_interrupted(sample) for run in self.runs for sample in run.samples),
            },
            "errors": _errors(counted),
            "finish": dict(Counter(sample.finish or "none" for sample in good)),
            "slo": {
                "bounds_ms": {name: 1000 * bound for name, bound in self.slo.bounds.items()},
                "met": met,
                "share": self.share,
                "kept": {
                    name: sum(sample.ok and self.slo.keeps(name, sample) for sample in counted) / len(counted)
                    for name in (self.slo.bounds if counted else ())
                },
            },
            "per_second": {
                "requests": per_second(len(good)),
                "good_requests": per_second(met),
                "output_tokens": per_second(output),
                "prompt_tokens": per_second(prompt),
            },
            "tokens": {
                "prompt": described((one.prompt_tokens for one in good if one.prompt_tokens is not None), 1),
                "output": described((sample.output_tokens for sample in good), 1),
                "counted_by_server": all(sample.counted_by_server for sample in good),
                "per_chunk": output / chunks if chunks else None,
            },
            **{f"{name}_ms": _latency(good, figure) for name, figure in LATENCIES.items()},
            "itl_ms": described(chain.from_iterable(sample.gaps for sample in good)),
            "by_round": [_round(run) for run in self.runs],
            "client": self.client(),
        }

    def client(self) -> dict[str, Any]:
        """How far the client itself can be trusted. Where places are bounded, waiting for one is the server's doing."""
        lags = [sample.lag for sample in self.counted] if self.load.is_open else []
        loop = [lag for run in self.runs for lag in run.loop_lags]
        own = sorted(loop if self.load.concurrency else lags + loop)
        late = percentile(own, 99) if own else 0.0
        wall = sum(run.wall for run in self.runs)
        busy = sum(run.cpu for run in self.runs) / wall if wall else 0.0
        latencies = sorted(sample.ttft or sample.e2e for sample in self.counted if sample.ok)
        bound = max(LATE, LATE_SHARE * percentile(latencies, 50)) if latencies else LATE
        return {
            "late_p99_ms": 1000 * late,
            "is_late": late > bound,
            "processor_share": busy,
            "is_busy": busy > BUSY,
            "lag_ms": described(lags),
            "loop_lag_ms": described(loop),
        }


def _counted(run: Run) -> list[Sample]:
    return [sample for sample in run.samples if not sample.warm_up and not _interrupted(sample)]


def _interrupted(sample: Sample) -> bool:
    return sample.failure is not None and sample.failure.kind == "interrupted"


def _span(samples: Sequence[Sample]) -> float:
    if not samples:
        return 0.0
    return max(sample.end for sample in samples) - min(sample.intended for sample in samples)


def _latency(samples: Sequence[Sample], figure: Callable[[Sample], float | None]) -> dict[str, float] | None:
    return described(value for sample in samples if (value := figure(sample)) is not None)


def _errors(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    counts: Counter[str] = Counter()
    first: dict[str, Failure] = {}
    for sample in samples:
        if sample.failure is not None:
            counts[str(sample.failure)] += 1
            first.setdefault(str(sample.failure), sample.failure)
    return [
        {
            "kind": first[name].kind,
            "status": first[name].status or None,
            "code": first[name].code or None,
            "count": count,
            "example": first[name].message[:300],
        }
        for name, count in counts.most_common()
    ]


def _round(run: Run) -> dict[str, Any]:
    """What tells whether rounds agree."""
    good = [sample for sample in _counted(run) if sample.ok]
    figures = {}
    for name, figure in LATENCIES.items():
        found = _latency(good, figure)
        figures[f"{name}_ms"] = {key: found[key] for key in ("p50", "p99")} if found else None
    span = _span(_counted(run))
    return {"requests_per_second": len(good) / span if span else 0.0, **figures}
