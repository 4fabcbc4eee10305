"""The fleet's simulation: nothing is lost, what is known of queues holds, and it chooses as the product does."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fleet import regions
from benchmarks.fleet.choosing import Knowledge, Least
from benchmarks.fleet.costs import MEASURED
from benchmarks.fleet.engines import Engines, Marks, served_alone
from benchmarks.fleet.fleet import cells_of, simulate
from benchmarks.fleet.machine import Machine
from benchmarks.fleet.outcome import Outage, Outcome
from benchmarks.fleet.queues import at_places, md1_wait, mmc_wait, one_server, servers
from benchmarks.fleet.topology import Topology
from benchmarks.fleet.traffic import Traffic, draw, lengths
from gateway.policy.schema import Target, Timeouts
from gateway.routing.selector import least_loaded
from gateway.types import Candidate
from tests.examples import examples

MACHINE = Machine("made up", 3e-3, 1.3e-5, 5e-8, 1e-9, 1e-3, 2e-5, 5e-3, 400_000)


def asked(rate: float = 60.0, seconds: float = 30.0, seed: int = 1) -> Traffic:
    return draw(rate, seconds, np.random.default_rng(seed), shapes=lengths(None), tenants=100)


def run(
    topology: Topology,
    traffic: Traffic,
    knowledge: Knowledge = "own",
    outages: tuple[Outage, ...] = (),
    among: int | None = None,
) -> Outcome:
    return simulate(
        topology,
        traffic,
        MACHINE,
        MEASURED,
        np.random.default_rng(2),
        knowledge=knowledge,
        among=among,
        outages=outages,
    )


@given(st.integers(1, 60), st.integers(0, 2**32))
@settings(max_examples=examples(50))
def test_a_server_works_through_its_arrivals_one_after_the_other(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    at, takes = np.sort(rng.uniform(0, 20, count)), rng.exponential(1.0, count)
    free, expected = 0.0, []
    for one, service in zip(at, takes, strict=True):
        free = max(free, one) + service
        expected.append(free)
    assert one_server(at, takes) == pytest.approx(np.array(expected))
    assert servers(at, takes, 1) == pytest.approx(np.array(expected))
    places = rng.integers(0, 3, count)
    mixed = rng.permutation(count)
    found = at_places(at[mixed], takes[mixed], places[mixed])
    for place in range(3):
        mine = places == place
        assert np.sort(found[places[mixed] == place]) == pytest.approx(one_server(at[mine], takes[mine]))


def test_queues_keep_to_their_closed_forms() -> None:
    rng = np.random.default_rng(3)
    at = np.cumsum(rng.exponential(1 / 0.7, 200_000))
    wait = np.mean(one_server(at, np.ones(len(at))) - at - 1)
    assert wait == pytest.approx(md1_wait(0.7, 1.0), rel=0.05)
    at, takes = np.cumsum(rng.exponential(1 / (0.8 * 4), 60_000)), rng.exponential(1.0, 60_000)
    assert np.mean(servers(at, takes, 4) - at - takes) == pytest.approx(mmc_wait(0.8, 1.0, 4), rel=0.1)


@pytest.mark.parametrize("knowledge", ["none", "own", "told", "all"])
@pytest.mark.parametrize("among", [None, 2])
def test_each_request_is_answered_once(knowledge: Knowledge, among: int | None) -> None:
    traffic = asked()
    told = run(Topology(4, 2), traffic, knowledge, among=among)
    assert told.answered.all() and not told.refused.any() and not told.broken.any()
    assert (told.dispatched >= traffic.at).all()
    assert (told.first > told.dispatched).all() and (told.last >= told.first).all()
    assert (told.attempts == 1).all()
    assert told.in_gateway.min() >= 0 and told.in_redis.min() >= 0


def test_the_same_seed_gives_the_same() -> None:
    traffic = asked()
    one, other = (run(Topology(4, 2), traffic) for _ in range(2))
    assert (one.last == other.last).all() and (one.engine == other.engine).all()


def test_littles_law() -> None:
    """Requests in the system are their rate times their stay, counted apart from each other."""
    traffic = asked(rate=40.0, seconds=60.0)
    told = run(Topology(4, 2), traffic)
    begin, end = 10.0, 50.0
    seen = np.linspace(begin, end, 4001)
    inside = np.mean([np.sum((traffic.at <= now) & (told.last > now)) for now in seen])
    chosen = (traffic.at >= begin) & (traffic.at < end)
    stays = np.mean(told.last[chosen] - traffic.at[chosen])
    assert inside == pytest.approx(chosen.sum() / (end - begin) * stays, rel=0.05)


def test_engines_that_die_lose_nothing_silently() -> None:
    traffic = asked(rate=100.0)
    told = run(Topology(4, 2), traffic, outages=(Outage(10.0, 8.0, engines=range(2)),))
    assert len(traffic) == told.answered.sum() + told.broken.sum() + told.refused.sum()
    assert told.broken.any() and (told.attempts > 1).any()
    # Nobody is answered by an engine that is away.
    away = (told.engine < 2) & (told.first > 10.1) & (told.first < 18.0) & ~told.broken
    assert not away.any()
    assert ((told.engine < 2) & (told.first > 18.0)).any()


def test_where_all_engines_are_away_requests_are_refused() -> None:
    told = run(Topology(2, 1), asked(), outages=(Outage(10.0, 5.0, engines=range(2)),))
    meanwhile = (told.traffic.at > 10.1) & (told.traffic.at < 14.9)
    assert told.refused[meanwhile].all() and not told.refused[told.traffic.at > 15.0].any()


def test_a_master_that_is_away_refuses_its_tenants_alone() -> None:
    traffic = asked()
    topology = Topology(4, 2, redis_masters=3)
    closed = run(topology, traffic, outages=(Outage(10.0, 5.0, master=0),))
    there = (traffic.at > 10.01) & (traffic.at < 14.9)
    refused = set(traffic.tenant[closed.refused].tolist())
    assert refused and not refused & set(traffic.tenant[there & ~closed.refused].tolist())
    assert not closed.refused[~((traffic.at > 9.9) & (traffic.at < 15.1))].any()
    local = run(topology, traffic, outages=(Outage(10.0, 5.0, master=0, closed=False),))
    assert local.answered.all()


def test_an_engine_that_is_asked_for_more_than_it_bears_queues_without_end() -> None:
    mean = lengths(None).mean(0)
    most = MACHINE.most(float(mean[0]), float(mean[1]))
    for part, grows in ((0.6, False), (1.3, True)):
        one = asked(rate=part * most, seconds=60.0)
        first, _ = served_alone(MACHINE, one.at, one.prompt, one.answer)
        waits = first - one.at
        assert bool(np.mean(waits[-200:]) > 5 * np.mean(waits[:200])) is grows


def test_memory_of_keys_and_values_is_never_overcommitted() -> None:
    small = Machine("small", 3e-3, 1.3e-5, 5e-8, 1e-9, 1e-3, 2e-5, 5e-3, 3000)
    one = asked(rate=40.0, seconds=20.0)
    marks = Marks(len(one))
    engines = Engines(small, 1, one.prompt, one.answer, marks)
    longest = int((one.prompt + one.answer).max())
    for request, at in enumerate(one.at.tolist()):
        engines.run_until(at)
        engines.submit(0, request, at)
        assert 0 <= engines.each[0].held <= max(3000, longest)
    engines.run_until(float("inf"))
    assert engines.each[0].held == 0 and not np.isnan(marks.lasts).any()


@given(st.lists(st.integers(0, 5), min_size=2, max_size=8), st.integers(0, 1000))
@settings(max_examples=examples(50))
def test_it_chooses_whom_the_product_chooses(loads: list[int], seed: int) -> None:
    class Loads:
        cold: frozenset[tuple[str, str]] = frozenset()

        def load(self, backend: str, /) -> int:
            return loads[int(backend)]

        def saturation(self, backend: str, caller: object = None, /) -> float:
            return 0.0

        def has_capacity(self, backend: str, tokens: int, caller: object = None, /) -> bool:
            return True

    candidates = [
        Candidate("m", Target(backend=str(number), model="x"), Timeouts()) for number in range(len(loads))
    ]
    chooser = Least("own", 1, len(loads), np.random.default_rng(seed))
    for engine, load in enumerate(loads):
        for _ in range(load):
            chooser.sent(0, engine)
    mine = {chooser.choose(0, 0, len(loads), 0.0) for _ in range(60)}
    theirs = {
        int(least_loaded(candidates, Loads(), Random(seed + draw))[0].target.backend) for draw in range(60)
    }
    least = {number for number, load in enumerate(loads) if load == min(loads)}
    assert mine <= least and theirs <= least
    if len(least) <= 3:
        assert mine == theirs == least


def test_of_engines_that_are_drawn_the_less_loaded_is_chosen() -> None:
    chooser = Least("all", 1, 40, np.random.default_rng(1), among=3)
    for engine in range(40):
        for _ in range(engine):
            chooser.sent(0, engine)
    chosen = [chooser.choose(0, 0, 40, 0.0) for _ in range(2000)]
    # The least of three uniform draws over 40: a mean of about a quarter of the way.
    assert np.mean(chosen) == pytest.approx(40 / 4 - 0.5, rel=0.1)


def test_cells_are_alike_whoever_is_the_largest() -> None:
    shares = np.arange(1, 501.0) ** -1.1
    shares /= shares.sum()
    rng = np.random.default_rng(1)
    tenant = rng.choice(500, 50_000, p=shares)
    cell = cells_of(shares, 10, rng, tenant)
    counts = np.bincount(cell, minlength=10)
    assert counts.max() < 1.1 * counts.mean()
    small = tenant >= 100
    assert all(len(set(cell[small & (tenant == one)].tolist())) <= 1 for one in range(100, 500))


def test_leases_never_let_in_more_than_the_limit() -> None:
    rng = np.random.default_rng(1)
    wanted = regions.demand(np.array([0.5, 0.3, 0.2]), 3600, 1.0, rng)
    cut = (1, 600, 1800)
    for every in (5, 60, 300):
        leased = regions.run("leased", wanted, 0.8, 3600, every, cut=cut)
        assert leased.beyond < 1e-9
        reconciled = regions.run("reconciled", wanted, 0.8, 3600, every, cut=cut)
        assert reconciled.beyond >= 0 and reconciled.unused <= 1e-9
    split = regions.run("split", wanted, 0.8, 3600, 3600)
    assert split.beyond < 1e-9 and split.unused > 0.05
    assert regions.run("one store", wanted, 0.8, 3600, 1).unused < 1e-9
