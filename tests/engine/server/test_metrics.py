from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine.messages import Ready, Step
from engine.server.metrics import EngineMetrics, Throughput

READY = Ready(
    max_model_len=64,
    vocab_size=9,
    block_size=4,
    blocks=20,
    max_num_seqs=8,
    max_waiting=4,
    device="cpu",
    dtype="float32",
)


def step(seconds: float = 0.1, prefill: int = 0, decode: int = 0, **changes: Any) -> Step:
    fields = {
        "running": 3,
        "waiting": 2,
        "waiting_by_priority": {0: 2},
        "blocks_free": 12,
        "blocks_cached": 1,
        "preempted": 1,
    } | changes
    return Step(
        seconds=seconds,
        sequences=3,
        prefill_tokens=prefill,
        decode_tokens=decode,
        queued=[(1, 0.2)],
        **fields,
    )


def test_a_step_shows_in_the_metrics() -> None:
    metrics = EngineMetrics()
    metrics.set_ready(READY)
    metrics.observe(step(prefill=5, decode=2), READY.blocks)
    lines = metrics.render().decode().splitlines()
    for line in (
        "tollgate_engine_running_requests 3.0",
        "tollgate_engine_waiting_requests 2.0",
        "tollgate_engine_kv_blocks_total 20.0",
        "tollgate_engine_kv_blocks_used 7.0",
        "tollgate_engine_kv_blocks_free 12.0",
        "tollgate_engine_kv_blocks_cached 1.0",
        "tollgate_engine_prefill_tokens_total 5.0",
        "tollgate_engine_preemptions_total 1.0",
        'tollgate_engine_step_batch_size_bucket{le="2.0"} 0.0',
        'tollgate_engine_step_batch_size_bucket{le="4.0"} 1.0',
        "tollgate_engine_step_duration_seconds_sum 0.1",
        "tollgate_engine_queue_seconds_sum 0.2",
    ):
        assert line in lines


def test_hits_draft_tokens_and_waiting_requests_are_exported() -> None:
    metrics = EngineMetrics()
    reported = replace(
        step(prefill=5), hit_tokens=32, proposed=10, accepted=7, waiting_by_priority={2: 3, 0: 1}
    )
    metrics.observe(reported, READY.blocks)
    metrics.observe(
        replace(reported, hit_tokens=0, proposed=14, accepted=8, waiting_by_priority={0: 2}), READY.blocks
    )
    lines = metrics.render().decode().splitlines()
    for line in (
        "tollgate_engine_prefix_hit_tokens_total 32.0",
        "tollgate_engine_speculation_proposed_tokens_total 14.0",
        "tollgate_engine_speculation_accepted_tokens_total 8.0",
        'tollgate_engine_waiting_requests_by_priority{priority="2"} 0.0',
        'tollgate_engine_waiting_requests_by_priority{priority="0"} 2.0',
    ):
        assert line in lines


def test_two_servers_in_one_process_do_not_share_their_figures() -> None:
    first, second = EngineMetrics(), EngineMetrics()
    first.observe(step(decode=1), 20)
    assert b"tollgate_engine_running_requests 0.0" in second.render()


def test_speed_is_measured_over_busy_time_and_follows_changes() -> None:
    throughput = Throughput()
    assert throughput.decode_tokens_per_second == 0
    for _ in range(10):
        throughput.observe(step(0.1, decode=10))
    assert throughput.decode_tokens_per_second == pytest.approx(100)
    assert throughput.prefill_tokens_per_second == 0
    for _ in range(400):
        throughput.observe(step(0.1, decode=20))
    assert throughput.decode_tokens_per_second == pytest.approx(200, rel=0.03)


def test_a_mixed_step_is_shared_out() -> None:
    throughput = Throughput()
    throughput.observe(step(1.0, prefill=90, decode=10))
    assert throughput.prefill_tokens_per_second == pytest.approx(100)
    assert throughput.decode_tokens_per_second == pytest.approx(100)


def test_retry_after_follows_the_queue_and_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("engine.server.metrics.time.monotonic", lambda: now)
    throughput = Throughput()
    assert throughput.retry_after(100) == 5
    for _ in range(10):
        now += 0.5
        throughput.finish()
    # Two a second leave: half of forty have gone after about ten seconds.
    assert throughput.retry_after(40) == pytest.approx(10, rel=0.2)
    assert throughput.retry_after(0) == 1
    assert throughput.retry_after(10_000) == 60
