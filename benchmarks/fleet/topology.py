"""What runs: gateways, Redis, engines, in cells; and how busy each part is, by arithmetic with measured costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchmarks.fleet.costs import Costs
from benchmarks.fleet.machine import Machine
from benchmarks.fleet.queues import Times
from gateway.backends.engine_poller import MANY as MANY_POLLED
from gateway.backends.engine_poller import SLOWEST
from gateway.routing.replica_selector import MANY, SOME
from gateway.stores.redis_parts import TAGS, part_of

PARTS = len(TAGS)


@dataclass(frozen=True, slots=True)
class Topology:
    """Numbers of all cells together; each cell has an equal part, a Redis (or cluster) of its own, and its tenants."""

    engines: int
    gateways: int
    workers: int = 4
    """Of each gateway."""
    redis_masters: int = 1
    """Of each cell; above one it is a cluster, in twelve parts."""
    cells: int = 1
    databases: int = 1
    """PostgreSQL servers, each of some cells."""
    polled: bool = True
    """Engines tell of their load: ``kind: engine``, ``telemetry``."""

    @property
    def cell_engines(self) -> int:
        return max(1, self.engines // self.cells)

    @property
    def cell_workers(self) -> int:
        return max(1, self.gateways // self.cells) * self.workers

    @property
    def all_workers(self) -> int:
        return self.cell_workers * self.cells


@dataclass(frozen=True, slots=True)
class Load:
    """Of a second, all cells together."""

    requests: float
    prompt: float
    answer: float
    """Tokens, means; each of an answer's is a chunk."""
    counters: float
    """Budgets that change within a second: of tenants and keys that ask."""


def request_cost(costs: Costs, topology: Topology) -> float:
    """Of a worker."""
    return costs.request + choice_cost(costs, topology)


def choice_cost(costs: Costs, topology: Topology) -> float:
    """By ``least_loaded``: of many replicas some are drawn."""
    engines = topology.cell_engines
    return costs.looked_at * (engines if engines <= MANY else SOME) + costs.replica * engines


def worker_background(costs: Costs, topology: Topology, load: Load) -> float:
    """The share of a worker's core that chunks and polls take."""
    chunks = load.requests * load.answer * costs.chunk / topology.all_workers
    return chunks + polls_share(costs, topology)


def polls_share(costs: Costs, topology: Topology) -> float:
    return costs.poll * polls(costs, topology) * topology.cell_engines


def polls(costs: Costs, topology: Topology) -> float:
    """A second, of a worker at each engine."""
    engines = topology.cell_engines
    interval = max(costs.poll_interval, min(costs.poll_interval * engines / MANY_POLLED, SLOWEST))
    return 1 / interval if topology.polled else 0.0


def master_shares(masters: int, tenants: Times) -> Times:
    """Of all requests, what each master has: ``tenants`` are the tenants' shares, as the product places them."""
    shares = np.zeros(masters)
    parts = range(PARTS if masters > 1 else 1)
    for number, share in enumerate(tenants.tolist()):
        shares[part_of(f"tenant-{number}", parts) * masters // len(parts)] += share
    return shares


def reservation_cost(costs: Costs, topology: Topology, load: Load, share: float) -> float:
    """Of a master that has this ``share`` of its cell's requests, for each of them: two round trips, as few come
    together in one worker, and one for what receipts there are by then. The busier it is, the less often it sleeps."""
    worker = load.requests / topology.all_workers
    trips = 2 + 1 / (1 + worker * costs.receipts_together)
    alone = costs.reservation + costs.receipt + trips * (costs.round_trip + costs.wake)
    return alone / (1 + load.requests / topology.cells * share * trips * costs.wake)


def renewals(costs: Costs, topology: Topology, load: Load) -> float:
    """The share of a master's core that workers' looks at changes take: of every worker at every part. Those of a
    gateway look at the same time, so that one of them reads what the others are told."""
    parts = PARTS if topology.redis_masters > 1 else 1
    changed = min(costs.most_renewed, load.counters / topology.cells / parts)
    workers, gateways = topology.cell_workers, topology.cell_workers / topology.workers
    told = workers / costs.renew_every * (costs.renewal + costs.told_counter * changed)
    read = min(gateways / costs.renew_every, 1 / costs.shared) * costs.read_counter * changed
    return (told + read) * parts / min(topology.redis_masters, parts)


def busy(
    costs: Costs, topology: Topology, machine: Machine, load: Load, hottest_master: float
) -> Mapping[str, float]:
    """Of each part the share of its time that it works; 1 is all of it. ``hottest_master``: its share of a cell's
    requests."""
    rate = load.requests
    http = rate / topology.engines * load.answer * costs.stream_at_engine
    polled = topology.cell_workers * polls(costs, topology) * costs.poll_at_engine
    transactions = min(20.0 * topology.all_workers, rate)
    return {
        "engines: GPU": rate / topology.engines / machine.most(load.prompt, load.answer),
        "engines: streams": http,
        "engines: being polled": polled,
        "gateways: requests": rate * costs.request / topology.all_workers,
        "gateways: choosing a replica": rate * choice_cost(costs, topology) / topology.all_workers,
        "gateways: streams": rate * load.answer * costs.chunk / topology.all_workers,
        "gateways: polling": polls_share(costs, topology),
        "Redis: reservations": rate
        / topology.cells
        * hottest_master
        * reservation_cost(costs, topology, load, hottest_master),
        "Redis: renewals": renewals(costs, topology, load),
        "PostgreSQL: rows": rate * costs.ledger_row / costs.ledger_cores / topology.databases,
        "PostgreSQL: transactions": transactions
        * costs.ledger_batch
        / costs.ledger_cores
        / topology.databases,
    }


def by_process(parts: Mapping[str, float]) -> Mapping[str, float]:
    """What shares a core is added up."""
    return {
        "engines: GPU": parts["engines: GPU"],
        "engines: HTTP": parts["engines: streams"] + parts["engines: being polled"],
        "gateways": sum(share for name, share in parts.items() if name.startswith("gateways")),
        "Redis": sum(share for name, share in parts.items() if name.startswith("Redis")),
        "PostgreSQL": parts["PostgreSQL: rows"] + parts["PostgreSQL: transactions"],
    }


def ledger_wait(costs: Costs, topology: Topology) -> float:
    """Seconds until a batch with a row of a tenant that all workers have is written: each holds that tenant's sum until
    its transaction is committed, one after the other."""
    return topology.all_workers / topology.databases * costs.commit
