"""The questions that are put to the simulation; each prints a table."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.fleet import plots, regions
from benchmarks.fleet.choosing import Knowledge
from benchmarks.fleet.costs import MEASURED, Costs
from benchmarks.fleet.fleet import simulate
from benchmarks.fleet.ladder import climb, gateways_for, hottest
from benchmarks.fleet.machine import Machine
from benchmarks.fleet.outcome import Outage, Outcome
from benchmarks.fleet.topology import Load, Topology, busy, by_process, ledger_wait
from benchmarks.fleet.traffic import TRACE, come_together, draw, lengths
from gateway.lab import charts
from gateway.routing.replica_selector import SOME

RATE = 16.667
"""Requests a second of each GPU: 1,000 of them have a million a minute."""
TENANTS, EXPONENT = 2000, 1.1
SIZES = (1, 10, 100, 1000)
TTFT = 0.5
"""Seconds that a client waits for a first token and finds it in time."""


def shares(hot: float | None = None) -> np.ndarray:
    weights = np.arange(1, TENANTS + 1, dtype=np.float64) ** -EXPONENT
    weights /= weights.sum()
    if hot is not None:
        weights = np.concatenate(([hot], weights[1:] * (1 - hot) / weights[1:].sum()))
    return weights


def steady(gpus: int, rate: float = RATE) -> Load:
    """What so many GPUs are asked for."""
    shapes = lengths(TRACE)
    asked = rate * gpus
    active = float(np.sum(1 - np.exp(-shares() * asked)))
    return Load(asked, float(shapes[:, 0].mean()), float(shapes[:, 1].mean()), 2 * active)


def flat(gpus: int, costs: Costs = MEASURED) -> Topology:
    """One cell, a Redis, and gateways for its streams."""
    return Topology(gpus, max(2 if gpus > 1 else 1, gateways_for(steady(gpus), costs)))


def advised(gpus: int, machine: Machine, costs: Costs = MEASURED) -> Topology:
    """What the ladder ends with."""
    return climb(flat(gpus, costs), machine, steady(gpus), costs, shares())[-1].topology


def bottlenecks(machine: Machine, costs: Costs = MEASURED) -> None:
    print("\n## What is full first\n")
    print("| GPUs | gateways × workers | Redis | cells | PostgreSQL | busiest | | most of it | so |")
    print("|--:|--:|--:|--:|--:|---|--:|---|---|")
    for gpus in SIZES:
        start = Topology(gpus, 1)
        for step in climb(start, machine, steady(gpus), costs, shares()):
            one = step.topology
            print(
                f"| {gpus:,} | {one.gateways} × {one.workers} | {one.redis_masters} | {one.cells} | {one.databases} "
                f"| {step.full} | {step.share:.0%} | {step.why} | {step.mend or 'enough'} |"
            )
    print("\n## How busy each part is, in one cell and in cells\n")
    columns = [(gpus, flat(gpus, costs)) for gpus in SIZES]
    columns.append((1000, advised(1000, machine, costs)))
    told = [busy(costs, one, machine, steady(gpus), hottest(one, shares())) for gpus, one in columns]
    heads = [f"{gpus:,}" + (f", {one.cells} cells" if one.cells > 1 else "") for gpus, one in columns]
    print(f"| share of a core (of a GPU) | {' | '.join(heads)} |\n|---|{'--:|' * len(heads)}")
    for part in told[0]:
        print(f"| {part} | {' | '.join(f'{one[part]:.1%}' for one in told)} |")
    for process in by_process(told[0]):
        print(f"| **{process}** | {' | '.join(f'**{by_process(one)[process]:.0%}**' for one in told)} |")
    waits = [f"{ledger_wait(costs, one):.2f} s" for _, one in columns]
    print(f"| a batch of the ledger waits for others' | {' | '.join(waits)} |")
    sizes = [f"{steady(gpus).requests * costs.ledger_bytes * 86_400 / 1e9:,.0f} GB" for gpus, _ in columns]
    print(f"| the ledger grows in a day by | {' | '.join(sizes)} |")


def _run(
    topology: Topology,
    machine: Machine,
    seconds: float,
    *,
    rate: float = RATE,
    seed: int = 1,
    hot: float | None = None,
    knowledge: Knowledge = "own",
    among: int | None = SOME,
    outages: tuple[Outage, ...] = (),
    herd: tuple[float, float, float] | None = None,
    costs: Costs = MEASURED,
) -> Outcome:
    """``herd``: from when on, for how many seconds nobody is answered, and within how many all come again."""
    rng = np.random.default_rng(seed)
    traffic = draw(
        rate * topology.engines,
        seconds,
        rng,
        shapes=lengths(TRACE),
        tenants=TENANTS,
        hot=hot,
        exponent=EXPONENT,
    )
    if herd is not None:
        traffic = come_together(traffic, *herd)
    return simulate(topology, traffic, machine, costs, rng, knowledge=knowledge, among=among, outages=outages)


def latencies(machine: Machine, seconds: float) -> None:
    print("\n## First tokens\n")
    print(
        "| GPUs | cells | requests | TTFT p50 | p95 | p99 | in the gateway p99 | in Redis p99 | workers | busiest "
        "master | simulated in |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    plans = [(gpus, advised(gpus, machine)) for gpus in SIZES]
    plans.insert(3, (1000, replace(flat(1000), redis_masters=12)))
    for gpus, topology in plans:
        began = time.perf_counter()
        told = _run(topology, machine, seconds if gpus > 100 else 4 * seconds)
        took = time.perf_counter() - began
        full = told.busy["workers"] >= 1
        ttft = ["without end" if full else f"{one * 1000:,.0f} ms" for one in told.ttft(50, 95, 99)]
        in_gateway = "without end" if full else f"{np.percentile(told.in_gateway, 99) * 1000:,.1f} ms"
        print(
            f"| {gpus:,} | {topology.cells} | {len(told.traffic):,} | {' | '.join(ttft)} | {in_gateway} "
            f"| {np.percentile(told.in_redis, 99) * 1000:,.1f} ms | {told.busy['workers']:.0%} "
            f"| {told.busy['the busiest master']:.0%} | {took:.0f} s |",
            flush=True,
        )


def knowledge(machine: Machine, seconds: float) -> Iterator[tuple[str, float, float]]:
    """Of 100 engines, chosen by what a worker knows: p99 of TTFT at two loads."""
    print("\n## What a worker knows when it chooses\n")
    print(
        "| 100 engines, chosen by | at 62 % of what they bear: p50 | p99 | at 90 %: p50 | p99 |\n|---|--:|--:|--:|--:|"
    )
    names: list[tuple[Knowledge, int | None, str]] = [
        ("none", None, "chance (`weighted`)"),
        ("own", None, "the worker's own requests in flight, of all"),
        ("own", SOME, "the same, of 32 that are drawn (`least_loaded`)"),
        ("told", None, "the engines' last word, 0.5 s old at most, and what it sent since, of all"),
        ("told", 2, "the same, of 2 that are drawn"),
        ("all", None, "all that is in flight (no gateway can know that)"),
    ]
    for known, among, name in names:
        found = []
        for rate in (RATE, 24.0):
            found += _run(flat(100), machine, seconds, rate=rate, knowledge=known, among=among).ttft(
                50, 99, since=seconds / 3
            )
        print(f"| {name} | {' | '.join(f'{one * 1000:,.0f} ms' for one in found)} |", flush=True)
        yield name, found[1], found[3]


def failures(machine: Machine, seconds: float) -> None:
    print("\n## What fails\n")
    print(
        "| what, in a cell of 100 GPUs | requests | refused | broken off | sent again | late (> 0.5 s) "
        "| TTFT p99 before | while | after |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    base = flat(100)
    at, gone = seconds / 3, 10.0
    cases: list[tuple[str, Topology, dict[str, object]]] = [
        ("nothing", base, {}),
        ("its only Redis, 10 s, `closed`", base, {"outages": (Outage(at, gone, master=0),)}),
        ("the same, `local`", base, {"outages": (Outage(at, gone, master=0, closed=False),)}),
        (
            "one of three masters, 10 s, `closed`",
            replace(base, redis_masters=3),
            {"outages": (Outage(at, gone, master=0),)},
        ),
        ("a tenth of the engines, 60 s", base, {"outages": (Outage(at, 60.0, engines=range(10)),)}),
        ("a third of the engines (a zone), 60 s", base, {"outages": (Outage(at, 60.0, engines=range(33)),)}),
        ("a tenant with 30 %", base, {"hot": 0.3}),
        ("a tenant with 30 %, 12 masters", replace(base, redis_masters=12), {"hot": 0.3}),
        ("all engines, 10 s", base, {"outages": (Outage(at, gone, engines=range(100)),)}),
        ("… and all who asked meanwhile ask again within 5 s", base, {"herd": (at, gone, 5.0)}),
        ("half as many requests again: another region's", base, {"rate": 1.5 * RATE}),
        ("twice as many", base, {"rate": 2 * RATE}),
    ]
    for name, topology, more in cases:
        told = _run(topology, machine, seconds, **more)  # type: ignore[arg-type]
        tails = (
            told.ttft(99, since=a, until=b)[0] for a, b in ((0, at), (at, at + gone), (at + gone, math.inf))
        )
        before, meanwhile, after = ("-" if math.isinf(tail) else f"{tail * 1000:,.0f} ms" for tail in tails)
        print(
            f"| {name} | {len(told.traffic):,} | {told.refused.mean():.1%} | {told.broken.mean():.1%} "
            f"| {(told.attempts > 1).mean():.1%} | {told.late(TTFT):.1%} | {before} "
            f"| {meanwhile} | {after} |",
            flush=True,
        )


def budgets() -> None:
    rng = np.random.default_rng(1)
    weights = np.array([0.5, 0.3, 0.2])
    print("\n## A limit over three regions\n")
    print(
        "| limit | protocol | exchange each | let in beyond it | refused though there was some | one region cut off "
        "meanwhile: beyond | refused |\n|---|---|--:|--:|--:|--:|--:|"
    )
    day = regions.demand(weights, 86_400, 1.0, rng)
    _budget_rows(
        "a day's budget, 90 % of what is asked", day, 0.9, 86_400, (10, 60, 600, 3600), (1, 74_000, 81_200)
    )
    hour = regions.demand(weights, 3600, 60.0, rng)
    _budget_rows(
        "a minute's tokens, all that is asked on average", hour, 1.0, 60, (1, 5, 15, 60), (1, 1200, 2400)
    )


def _budget_rows(
    name: str,
    asked: np.ndarray,
    limit: float,
    window: int,
    periods: tuple[int, ...],
    cut: tuple[int, int, int],
) -> None:
    for protocol in ("one store", "split", "reconciled", "leased"):
        for every in periods if protocol in ("reconciled", "leased") else (window,):
            found = [regions.run(protocol, asked, limit, window, every, cut=one) for one in (None, cut)]
            cells = [f"{one.beyond:.2%} | {one.unused:.2%}" for one in found]
            # Without its store a region does what ``on_store_failure`` says, which is no question of a protocol.
            told = " | ".join([cells[0], "- | -" if protocol == "one store" else cells[1]])
            often = (
                f"{every} s"
                if protocol in ("reconciled", "leased")
                else "never"
                if protocol == "split"
                else "-"
            )
            print(f"| {name} | {protocol} | {often} | {told} |", flush=True)


def pictures(machine: Machine, seconds: float) -> list[Path]:
    """How busy parts are by the fleet's size, in one cell and in cells; first tokens by load and knowledge; budgets."""
    sizes = [1, 2, 5, 10, 20, 50, 100, 200, 300, 500, 700, 1000]
    names = ("engines: GPU", "engines: HTTP", "gateways", "Redis", "PostgreSQL")
    written = []
    for name, title, plan in (
        ("scale-one-cell", "One cell: how busy the busiest core of each part is (computed)", flat),
        ("scale-cells", "Cells of 100 GPUs (computed)", lambda gpus: advised(gpus, machine)),
    ):
        rows = []
        for gpus in sizes:
            one = plan(gpus)
            told = by_process(busy(MEASURED, one, machine, steady(gpus), hottest(one, shares())))
            rows.append([100 * told[name] for name in names])
        series = [
            charts.Series(part, [(gpus, row[i]) for gpus, row in zip(sizes, rows, strict=True)], color=i)
            for i, part in enumerate(names)
        ]
        x = charts.logarithmic("GPUs", [float(size) for size in sizes])
        y = charts.linear("% of a core, or of a GPU", [250.0])
        written.append(
            plots.write(name, plots.picture(title, x, y, series, [(70.0, "full: 70 %"), (100.0, "100 %")]))
        )
    rates = [8.0, 12.0, RATE, 20.0, 22.0, 24.0, 25.0, 26.0]
    lines: list[tuple[Knowledge, int | None, str]] = [
        ("none", None, "by chance"),
        ("own", SOME, "own requests, of 32 (least_loaded)"),
        ("told", None, "engines' last word, of all"),
        ("told", 2, "engines' last word, of 2"),
        ("all", None, "all in flight (bound)"),
    ]
    series = []
    for i, (known, among, line) in enumerate(lines):
        points = [
            (
                rate,
                1000
                * _run(flat(100), machine, seconds, rate=rate, knowledge=known, among=among).ttft(
                    99, since=seconds / 3
                )[0],
            )
            for rate in rates
        ]
        series.append(charts.Series(line, points, color=i))
    x = charts.linear("requests a second and GPU", rates)
    y = charts.linear("TTFT p99, ms", [one for line in series for _, one in line.points])
    written.append(
        plots.write(
            "scale-choosing",
            plots.picture("100 engines: what a worker knows when it chooses (simulated)", x, y, series),
        )
    )
    return written
