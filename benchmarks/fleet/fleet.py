"""The whole: what becomes of each request on its way through gateways, Redis and engines.

Gateways and Redis are queues over whole arrays (``queues.py``), as nothing behind them acts back on them but by the
share of their time that it takes; engines are simulated event by event (``engines.py``), as their speed depends on what
they have.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from benchmarks.fleet.choosing import Knowledge, Least
from benchmarks.fleet.costs import Costs
from benchmarks.fleet.engines import NEVER, Engines
from benchmarks.fleet.machine import Machine
from benchmarks.fleet.outcome import Outage, Outcome
from benchmarks.fleet.queues import Places, Times, at_places
from benchmarks.fleet.topology import (
    PARTS,
    Load,
    Topology,
    renewals,
    request_cost,
    reservation_cost,
    worker_background,
)
from benchmarks.fleet.traffic import Traffic
from gateway.stores.redis_parts import part_of

WIRE = 1e-4
"""Seconds of a round trip within a region, processor time apart."""
RETRY = 5e-3
"""Until a request is sent elsewhere whose engine is gone."""
MOST_ATTEMPTS = 4
"""Of a request, before it is refused: the policy's ``retry.attempts`` and fallbacks."""
OVERLOADED = 0.995
"""A worker or master without any time left is simulated as this busy: its queue grows for as long as that lasts."""


def cells_of(shares: Times, cells: int, rng: np.random.Generator, tenant: Places) -> Places:
    """Each request's cell: tenants are packed into cells, the largest first; whoever has more than a quarter of a cell
    is in several, a part of its requests in each."""
    if cells == 1:
        return np.zeros(len(tenant), np.int64)
    most = 0.25 / cells
    loads = [(0.0, cell) for cell in range(cells)]
    places: list[list[int]] = []
    for number in np.argsort(-shares).tolist():
        pieces = max(1, int(np.ceil(shares[number] / most)))
        chosen = [heapq.heappop(loads) for _ in range(min(pieces, cells))]
        for load, cell in chosen:
            heapq.heappush(loads, (load + shares[number] / len(chosen), cell))
        places.append([number, *(cell for _, cell in chosen)])
    found = np.zeros(len(tenant), np.int64)
    widest = max(map(len, places)) - 1
    table = np.zeros((len(shares), widest), np.int64)
    counts = np.ones(len(shares), np.int64)
    for number, *where in places:
        counts[number] = len(where)
        table[number, : len(where)] = where
    found = table[tenant, rng.integers(0, counts[tenant])]
    return found


@dataclass
class _Run:
    """Engines' listener: it keeps when tokens came, and tells the chooser."""

    chooser: Least
    first_at: Times
    last_at: Times
    engine: Places
    worker: Places
    events: int = 0

    def first(self, request: int, at: float) -> None:
        self.events += 1
        self.first_at[request] = at

    def last(self, request: int, at: float) -> None:
        self.events += 1
        self.last_at[request] = at
        self.chooser.ended(int(self.worker[request]), int(self.engine[request]))


def simulate(
    topology: Topology,
    traffic: Traffic,
    machine: Machine,
    costs: Costs,
    rng: np.random.Generator,
    *,
    knowledge: Knowledge = "own",
    among: int | None = None,
    outages: Sequence[Outage] = (),
    slow: float = 1.0,
) -> Outcome:
    """``among``: each worker chooses among so many engines that are drawn. ``slow``: how many times a request's cost
    this machine takes, where the costs are another's."""
    count, horizon = len(traffic), float(traffic.at[-1]) if len(traffic) else 1.0
    shares = np.bincount(traffic.tenant) / max(1, count)
    cell = cells_of(shares, topology.cells, rng, traffic.tenant)
    worker = cell * topology.cell_workers + rng.integers(0, topology.cell_workers, count)
    load = load_of(traffic, horizon)
    # No more chunks pass than engines make.
    most = topology.engines * machine.most(load.prompt, load.answer)
    passing = replace(load, requests=min(load.requests, most))
    background = min(OVERLOADED, worker_background(costs, topology, passing) * slow)
    service = np.full(count, request_cost(costs, topology) * slow / (1 - background))
    reserved_at = at_places(traffic.at, service, worker)
    master = _masters(topology, traffic, cell)
    taken = min(OVERLOADED, renewals(costs, topology, load))
    hottest = float(np.bincount(master).max()) / max(1, count) * topology.cells
    reserving = reservation_cost(costs, topology, load, hottest)
    answered = at_places(reserved_at + WIRE, np.full(count, reserving / (1 - taken)), master)
    refused = np.zeros(count, np.bool_)
    for outage in outages:
        if outage.master is not None:
            away = (
                (master == outage.master)
                & (reserved_at >= outage.at)
                & (reserved_at < outage.at + outage.seconds)
            )
            answered[away] = reserved_at[away]
            if outage.closed:
                refused |= away
    dispatched = np.where(refused, np.nan, answered + WIRE)
    first, last, engine, attempts, broken, engines, run = _serve(
        topology, traffic, machine, dispatched, cell, worker, rng, knowledge, among, outages
    )
    # Chunks pass the worker once more: to its client.
    through = costs.chunk * slow / (1 - background)
    busiest = np.array([one.busy for one in engines.each]) / max(horizon, 1e-9)
    per_worker = np.bincount(worker, minlength=topology.all_workers)
    return Outcome(
        traffic,
        dispatched,
        first + through,
        last + through,
        engine,
        cell,
        worker,
        reserved_at - traffic.at,
        np.where(refused, 0.0, answered - reserved_at),
        attempts,
        broken,
        {
            "workers": float(per_worker.mean() / horizon * request_cost(costs, topology) * slow + background),
            "the busiest master": float(
                np.bincount(master).max() / horizon * reserving + renewals(costs, topology, load)
            ),
            "engines": float(busiest.mean()),
            "the busiest engine": float(busiest.max()),
        },
        run.events,
    )


def load_of(traffic: Traffic, horizon: float) -> Load:
    rate = len(traffic) / horizon
    shares = np.bincount(traffic.tenant) / max(1, len(traffic))
    # Tenants that ask within a second: each has a budget by the month and a limit by the day, its keys another.
    active = float(np.sum(1 - np.exp(-shares * rate)))
    return Load(rate, traffic.mean_prompt, traffic.mean_answer, 2 * active)


def _masters(topology: Topology, traffic: Traffic, cell: Places) -> Places:
    masters = topology.redis_masters
    parts = range(PARTS if masters > 1 else 1)
    tenants = int(traffic.tenant.max()) + 1 if len(traffic) else 1
    of = np.array([part_of(f"tenant-{number}", parts) * masters // len(parts) for number in range(tenants)])
    masters_of: Places = cell * masters + of[traffic.tenant]
    return masters_of


def _serve(
    topology: Topology,
    traffic: Traffic,
    machine: Machine,
    dispatched: Times,
    cell: Places,
    worker: Places,
    rng: np.random.Generator,
    knowledge: Knowledge,
    among: int | None,
    outages: Sequence[Outage],
) -> tuple[Times, Times, Places, Places, npt.NDArray[np.bool_], Engines, _Run]:
    count, size = len(traffic), topology.cell_engines
    total = size * topology.cells
    chooser = Least(knowledge, topology.all_workers, total, rng, among=among)
    first, last = np.full(count, np.nan), np.full(count, np.nan)
    engine, attempts = np.full(count, -1, np.int64), np.zeros(count, np.int64)
    broken = np.zeros(count, np.bool_)
    run = _Run(chooser, first, last, engine, worker)
    engines = Engines(machine, total, traffic.prompt, traffic.answer, run)
    order = np.argsort(dispatched, kind="stable")
    order = order[: count - int(np.isnan(dispatched).sum())]
    times, cells, workers = dispatched.tolist(), (cell * size).tolist(), worker.tolist()
    # Retries and failures, among the arrivals: (time, what, number).
    specials: list[tuple[float, int, int]] = []
    for number, outage in enumerate(outages):
        if outage.engines:
            heapq.heappush(specials, (outage.at, 0, number))
            heapq.heappush(specials, (outage.at + outage.seconds, 1, number))

    def send(request: int, at: float) -> None:
        begin, mine = cells[request], workers[request]
        chosen = chooser.choose(mine, begin, begin + size, at)
        attempts[request] += 1
        if engines.each[chosen].away_until > at:
            # Each worker finds out for itself; then its breaker is open, and what it asks next is another one.
            chooser.avoid(mine, chosen)
            if attempts[request] < MOST_ATTEMPTS:
                heapq.heappush(specials, (at + RETRY, 2, request))
            else:
                dispatched[request] = np.nan
            return
        engine[request] = chosen
        chooser.sent(mine, chosen)
        engines.submit(chosen, request, at)

    def special() -> None:
        at, what, number = heapq.heappop(specials)
        engines.run_until(at)
        if what == 2:
            send(number, at)
            return
        outage = outages[number]
        for one in outage.engines:
            if what:
                chooser.is_back(one)
            else:
                for request in engines.drop(one, at, at + outage.seconds):
                    chooser.ended(workers[request], one)
                    if first[request] <= at:
                        broken[request] = True
                    else:
                        first[request] = np.nan
                        heapq.heappush(specials, (at + RETRY, 2, request))

    for request in order.tolist():
        at = times[request]
        while specials and specials[0][0] <= at:
            special()
        engines.run_until(at)
        send(request, at)
    while specials:
        special()
    engines.run_until(NEVER)
    return first, last, engine, attempts, broken, engines, run
