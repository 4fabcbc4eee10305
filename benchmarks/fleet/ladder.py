"""What is full first as a fleet grows, and what next once that is mended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.fleet.costs import BUSY, Costs
from benchmarks.fleet.machine import Machine
from benchmarks.fleet.queues import Times
from benchmarks.fleet.topology import Load, Topology, busy, by_process, master_shares

AIM = 0.55
"""Of gateways after more of them were added: room for a burst, and for the loss of one in five."""
CELL = 100
"""Engines of a cell where one is divided."""


@dataclass(frozen=True, slots=True)
class Step:
    topology: Topology
    full: str
    """The process that is the busiest,"""
    share: float
    why: str
    """what of it takes most,"""
    mend: str
    """and what helps; empty where nothing needs it."""
    parts: Mapping[str, float]


def climb(start: Topology, machine: Machine, load: Load, costs: Costs, tenants: Times) -> list[Step]:
    """Mend what is the busiest, until nothing is busier than ``BUSY`` but GPUs, which only fewer requests mend."""
    topology = start
    steps: list[Step] = []
    for _ in range(20):
        parts = busy(costs, topology, machine, load, hottest(topology, tenants))
        processes = by_process(parts)
        full = max((name for name in processes if name != "engines: GPU"), key=lambda name: processes[name])
        share = processes[full]
        stem = full.partition(":")[0]
        mine = {name: one for name, one in parts.items() if name.startswith(stem) and "GPU" not in name}
        why = max(mine, key=lambda name: mine[name])
        if share <= BUSY:
            return [*steps, Step(topology, full, share, why, "", parts)]
        mended, mend = _mend(topology, full, share, mine, gateways_for(load, costs, topology.workers))
        steps.append(Step(topology, full, share, why, mend, parts))
        topology = mended
    return steps


def hottest(topology: Topology, tenants: Times) -> float:
    """The busiest master's share of a cell's requests. In cells no tenant has more than a quarter of one
    (``fleet.cells_of``)."""
    if topology.redis_masters == 1:
        return 1.0
    capped = tenants.clip(max=0.25 / topology.cells) if topology.cells > 1 else tenants
    return float(master_shares(topology.redis_masters, capped / capped.sum()).max())


def gateways_for(load: Load, costs: Costs, workers: int = 4) -> int:
    """Of so many workers, for requests and their streams alone."""
    return math.ceil(load.requests * (costs.request + load.answer * costs.chunk) / AIM / workers)


def _mend(
    now: Topology, full: str, share: float, mine: Mapping[str, float], streams: int
) -> tuple[Topology, str]:
    """``streams``: the gateways that requests and streams need, wherever engines are polled from."""
    divided = _in_cells(now, max(now.cells + 1, now.engines // CELL))
    if full.startswith("PostgreSQL"):
        more = max(now.databases + 1, math.ceil(now.databases * share / BUSY))
        return replace(now, databases=more), f"{more} PostgreSQL servers"
    if full == "gateways":
        alone = mine["gateways: polling"]
        if alone > AIM / 2 or mine["gateways: choosing a replica"] > mine["gateways: streams"]:
            return divided, f"{divided.cells} cells of {divided.cell_engines} GPUs"
        gateways = streams
        if now.gateways >= streams:  # what they poll and choose from is too much besides
            gateways = math.ceil(now.gateways * (sum(mine.values()) - alone) / (AIM - alone))
        gateways = math.ceil(gateways / now.cells) * now.cells
        return replace(now, gateways=gateways), f"{gateways} gateways"
    masters = {1: 3, 3: 6, 6: 12}.get(now.redis_masters)
    # A cluster would do as well, with everybody in one boat, and one tenant's master the busiest.
    apart = full == "Redis" and now.engines > CELL and now.cells == 1
    if full == "engines: HTTP" or masters is None or apart:
        return divided, f"{divided.cells} cells of {divided.cell_engines} GPUs"
    return replace(now, redis_masters=masters), f"a cluster of {masters} masters"


def _in_cells(now: Topology, cells: int) -> Topology:
    """A Redis each."""
    return replace(now, cells=cells, gateways=math.ceil(now.gateways / cells) * cells, redis_masters=1)
