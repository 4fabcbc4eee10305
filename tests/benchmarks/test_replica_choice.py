from __future__ import annotations

import pytest

from benchmarks.replay import Replay, made_up
from benchmarks.replica_choice import POLICIES, Play, scaled
from benchmarks.replica_engines import LONGEST, TOKENS, prompt_of, scaled_down
from benchmarks.replica_model import Job, Server

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
