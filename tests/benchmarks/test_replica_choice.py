from __future__ import annotations

import pytest

from benchmarks.replay import Replay, made_up
from benchmarks.replica_choice import scaled
from benchmarks.replica_cores import Cores
from benchmarks.replica_engines import LONGEST, TOKENS, prompt_of, scaled_down
from benchmarks.replica_model import Costs, Job, Server
from benchmarks.replica_play import POLICIES, Play

TRACE = made_up(120)


def test_the_model_of_a_server_has_the_schedulers_hits_and_times() -> None:
    server, jobs = Server(), []
    for number, one in enumerate(TRACE):
        server.run(one.at)
        job = Job(number, one.at, one.hashes, one.length, one.generate)
        jobs.append(job)
        server.submit(job)
    server.drain()
    found = Replay(TRACE, blocks=781 * 8, block_size=64, weights=False).run()
    hits = sum(job.hit for job in jobs) / sum(job.length for job in jobs)
    assert hits == pytest.approx(found.hit_rate, rel=0.1)
    ttft = sorted(job.first - job.at for job in jobs if job.first is not None)
    assert ttft[len(ttft) // 2] == pytest.approx(found.ttft_p50_s, rel=0.3)
    assert not server.jobs and server.used == 0.0


@pytest.mark.parametrize("policy", POLICIES)
def test_each_request_is_answered_once_while_replicas_come_and_go(policy: str) -> None:
    play = Play(policy, TRACE, 4, seed=3)
    found = play.run()
    assert found.requests == len(TRACE)
    assert all(job.first is not None for job in play._jobs)
    assert 0 < found.hit_rate <= found.best_hit_rate
    assert Play(policy, TRACE, 4, seed=3).run().ttft_mean_s == found.ttft_mean_s


def test_more_replicas_get_as_many_requests_each_in_the_traces_own_time() -> None:
    for replicas in (1, 4, 16):
        arrivals, speed = scaled(TRACE, replicas, 20)
        assert len(arrivals) >= 20 * replicas or len(arrivals) % len(TRACE) == 0
        assert 0.25 < speed < 1.6
        assert arrivals == sorted(arrivals, key=lambda one: one.at)


def test_a_trace_scaled_down_has_prompts_that_begin_alike_where_the_recorded_ones_did() -> None:
    small = scaled_down(TRACE, 50)
    one, other = next(
        (a, b) for i, a in enumerate(small) for b in small[i + 1 :] if a.hashes[:2] == b.hashes[:2]
    )
    assert prompt_of(one)[:TOKENS] == prompt_of(other)[:TOKENS]
    assert all(0 < len(prompt_of(arrival)) == arrival.length <= LONGEST for arrival in small)


def test_servers_that_share_cores_take_as_long_as_their_part_of_them() -> None:
    """By hand: a prompt of 1,000 tokens takes a second on a core of its own."""

    def firsts(count: int, cores: Cores) -> list[float]:
        costs = Costs(step=0.0, prefill=1e-3, decode=0.0)
        servers = [Server(costs=costs, block_tokens=16, cores=cores) for _ in range(count)]
        jobs = [Job(number, 0.0, [], 1000, 1) for number in range(count)]
        for server, job in zip(servers, jobs, strict=True):
            server.submit(job)
        servers[0].run(10.0)
        return [job.first or 0.0 for job in jobs]

    assert firsts(1, Cores(2.0)) == pytest.approx([1.0])
    assert firsts(2, Cores(2.0)) == pytest.approx([1.0, 1.0])
    assert firsts(4, Cores(2.0)) == pytest.approx([2.0] * 4)
    assert firsts(2, Cores(1.6, each=1.2)) == pytest.approx([1.5, 1.5])
    assert firsts(2, Cores(2.0, beside=1.25)) == pytest.approx([1.25, 1.25])


def test_who_comes_later_has_a_part_from_then_on() -> None:
    cores = Cores(1.0)
    costs = Costs(step=0.0, prefill=1e-3, decode=0.0)
    one, other = (Server(costs=costs, block_tokens=16, cores=cores) for _ in range(2))
    first, second = (Job(number, 0.0, [], 1000, 1) for number in range(2))
    one.submit(first)
    one.run(0.5)
    other.submit(second)
    other.run(10.0)
    assert (first.first, second.first) == (pytest.approx(1.5), pytest.approx(2.0))


@pytest.mark.parametrize("policy", POLICIES)
def test_with_a_core_for_each_it_is_as_with_a_machine_for_each(policy: str) -> None:
    alone = Play(policy, TRACE, 4, churn=False).run()
    shared = Play(policy, TRACE, 4, churn=False, cores=Cores(4.0)).run()
    assert shared.requests == alone.requests == len(TRACE)
    assert shared.ttft_mean_s == pytest.approx(alone.ttft_mean_s, rel=0.05)
    assert Play(policy, TRACE, 4, churn=False, cores=Cores(1.0)).run().ttft_mean_s > alone.ttft_mean_s
