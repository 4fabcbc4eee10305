"""What one worker has counted since it started, and has in flight and queued now; and the sum over all workers.

Counters only grow: whoever looks twice knows the rates. Taking a snapshot reads a few hundred numbers, and nothing is
taken while nobody looks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from gateway.admission.fair_queue import Waiter
from gateway.admission.pool import Pool
from gateway.admission.slot_lease import SlotLease
from gateway.observe.prometheus.buffers import BufferedCounter, BufferedHistogram, Family
from gateway.runtime.worker_state import WorkerState

MOST_WAITING = 50
"""Requests in queues that are shown, of each backend, by position."""

Json = Any
COUNTERS = (
    *(
        "requests",
        "tokens",
        "in_flight",
        "cost",
        "guard_hits",
        "guard_scans",
        "guard_cuts",
        "cache",
        "cache_saved_tokens",
        "cache_saved_dollars",
        "guard_streams",
        "guard_unscanned",
        "shed",
        "refused",
    ),
    *("attempts", "upstream_errors"),
)
HISTOGRAMS = ("first_token", "inter_token", "seconds", "queue_seconds")


def snapshot(state: WorkerState) -> dict[str, Json]:
    metrics = state.metrics
    return {
        "workers": 1,
        "counters": {name: _counts(getattr(metrics, name)) for name in COUNTERS},
        "histograms": {name: _buckets(getattr(metrics, name)) for name in HISTOGRAMS},
        "backends": {pool.name: _pool(pool) for pool in state.pools},
        "breakers": [
            {
                "backend": backend,
                "model": model,
                "tenant": scope.tenant,
                "key": scope.key_id,
                "seconds": round(seconds, 1),
            }
            for backend, model, breaker in state.health.breakers()
            for scope, seconds in breaker.open_scopes()
        ],
    }


def merged(snapshots: Iterable[Mapping[str, Json]]) -> dict[str, Json]:
    """The sum over all workers. Where they share slots, each knows the same limit."""
    counters: dict[str, dict[str, float]] = {}
    histograms: dict[str, Json] = {}
    backends: dict[str, Json] = {}
    breakers: list[Json] = []
    workers = 0
    for one in snapshots:
        workers += one["workers"]
        for name, counts in one["counters"].items():
            into = counters.setdefault(name, {})
            for labels, value in counts.items():
                into[labels] = into.get(labels, 0.0) + value
        for name, histogram in one["histograms"].items():
            sums = histograms.setdefault(name, {"bounds": histogram["bounds"], "counts": []})["counts"]
            counts = histogram["counts"]
            sums[:] = [
                a + b
                for a, b in zip(
                    sums + [0.0] * (len(counts) - len(sums)),
                    counts + [0.0] * (len(sums) - len(counts)),
                    strict=True,
                )
            ]
            histograms[name]["bounds"] = histograms[name]["bounds"] or histogram["bounds"]
        for name, pool in one["backends"].items():
            _add_pool(backends.setdefault(name, {"queue": []}), pool)
        breakers += one["breakers"]
    return {
        "workers": workers,
        "counters": counters,
        "histograms": histograms,
        "backends": backends,
        "breakers": breakers,
    }


def _counts(family: Family[BufferedCounter]) -> dict[str, float]:
    """By the values of the labels, joined by tabs, which no label has."""
    return {"\t".join(labels): round(child.value, 9) for labels, child in family.items()}


def _buckets(family: Family[BufferedHistogram]) -> dict[str, Json]:
    bounds: list[float] = []
    sums: list[float] = []
    for child in family.values():
        counts = child.counts
        bounds = [bound for bound in child.bounds if bound != float("inf")]
        sums = [a + b for a, b in zip(sums or [0.0] * len(counts), counts, strict=True)]
    return {"bounds": bounds, "counts": sums}


def _pool(pool: Pool) -> dict[str, Json]:
    engine = pool.speed.engine
    first = heapq.nsmallest(MOST_WAITING, pool.queue.waiters(), key=lambda waiter: waiter.since)
    return {
        "in_flight": pool.in_flight,
        "slots": pool.slots if pool.limited else None,
        "waiting": len(pool.queue),
        "saturation": round(pool.saturation, 4),
        "tokens_in_flight": pool.tokens_in_flight,
        "queue": sorted((_waiter(pool, one) for one in first), key=lambda one: int(one["position"])),
        **(
            {
                "engine": {
                    "running": engine.running,
                    "waiting": engine.waiting,
                    "kv_usage": round(engine.kv_usage, 4),
                    "cached": round(engine.cached / engine.prompts, 4) if engine.prompts else None,
                    "gpus": [asdict(gpu) for gpu in engine.gpus],
                    "models": dict(engine.models),
                }
            }
            if engine is not None
            else {}
        ),
    }


def _waiter(pool: Pool, waiter: Waiter[SlotLease]) -> dict[str, Json]:
    expected = waiter.item.expected_wait
    return {
        "position": waiter.item.position,
        "tier": waiter.tier_queue.tier,
        "tenant": waiter.tenant.name,
        "tokens": waiter.tokens,
        "waited": round(pool.clock() - waiter.since, 3),
        "expected": None if expected is None else round(expected, 3),
    }


def _add_pool(into: dict[str, Json], pool: Mapping[str, Json]) -> None:
    for name in ("in_flight", "waiting", "tokens_in_flight"):
        into[name] = into.get(name, 0) + pool[name]
    into["saturation"] = max(into.get("saturation", 0.0), pool["saturation"])
    slots, more = into.get("slots"), pool["slots"]
    into["slots"] = more if slots is None else slots if more is None else max(slots, more)
    into["queue"] = sorted([*into["queue"], *pool["queue"]], key=lambda one: int(one["position"]))[
        :MOST_WAITING
    ]
    if "engine" in pool:
        into["engine"] = pool["engine"]
