"""Recorded and made-up arrivals through the scheduler: what the benchmark reports is what happened."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from benchmarks.replay import DATA, HASHED, Arrival, Replay, Result, Tier, best_hits, made_up, traces

BLOCK = 64
TRACES = ("azure_conv", "azure_code", "mooncake_conversation")


def replay(arrivals: list[Arrival], **options) -> Result:
    found = Replay(arrivals, block_size=BLOCK, **options).run()
    assert found.requests + found.refused == len(arrivals)
    assert found.kv_use_max <= 1
    # That counts whole blocks, and of others half and more are found.
    assert found.hit_rate <= found.best_hit_rate + 0.02
    assert 0 <= found.queue_p50_s <= found.queue_p99_s
    assert found.queue_p50_s < found.ttft_p50_s
    return found


def test_one_after_the_other_and_with_room_for_all_everything_that_can_be_is_found_again() -> None:
    arrivals = made_up(150, rate=0.001)
    found = replay(arrivals, blocks=20_000)
    assert found.hit_rate >= found.best_hit_rate
    assert found.best_hit_rate > 0.3
    assert found.preempted == 0
    assert found.queue_p99_s < 0.02


def test_a_prompt_costs_what_the_model_of_costs_says() -> None:
    (arrival,) = [Arrival(5.0, (0, 1), HASHED + 100, 3)]
    found = replay([arrival], blocks=100, max_itl_ratio=0)
    assert found.steps == 3
    assert found.ttft_p50_s == pytest.approx(0.008 + 612 * 25e-6)
    assert found.simulated_s == pytest.approx(5.0 + 3 * 0.008 + 612 * 25e-6 + 2 * 50e-6)


def test_what_is_best_counts_whole_blocks_of_what_was_really_computed() -> None:
    rows = [(HASHED + 100, (0, 1)), (2 * HASHED + 5, (0, 1, 2)), (HASHED, (0,)), (10, (9,))]
    arrivals = [Arrival(float(i), hashes, length, 1) for i, (length, hashes) in enumerate(rows)]
    # Of the second, a hash and 100 tokens are known; of the third all, but the last token is always computed.
    assert best_hits(arrivals, BLOCK) == (HASHED + 64) + (HASHED - 64)


def test_a_small_pool_preempts_and_yet_all_end_and_the_same_happens_every_time() -> None:
    arrivals = made_up(120, rate=20)
    first = replay(arrivals, blocks=260, sequences=16, budget=512, check=10, priorities=True)
    again = replay(arrivals, blocks=260, sequences=16, budget=512, priorities=True)
    assert first.preempted > 0
    timeless = [
        {name: value for name, value in asdict(one).items() if not name.startswith("scheduler")}
        for one in (first, again)
    ]
    assert timeless[0] == timeless[1]


def test_prefixes_of_heavy_tiers_outlive_those_of_light_ones() -> None:
    arrivals = made_up(600, rate=1.0)
    weighted, plain = (replay(arrivals, blocks=600, weights=weights) for weights in (True, False))
    kept, usual = weighted.hit_rate_by_tier, plain.hit_rate_by_tier
    assert kept["enterprise"] > usual["enterprise"] + 0.1
    assert kept["enterprise"] > kept["pro"] > kept["free"]


def test_a_bounded_queue_refuses_what_is_beyond_it() -> None:
    arrivals = made_up(200, rate=50)
    found = replay(arrivals, blocks=5_000, sequences=8, budget=512, waiting=20)
    assert found.refused > 50
    assert found.queue_p99_s < replay(arrivals, blocks=5_000, sequences=8, budget=512).queue_p99_s / 2


@pytest.mark.parametrize("name", TRACES)
def test_the_first_rows_of_a_recorded_day(name: str) -> None:
    found = traces(DATA, 200).get(name)
    if found is None:
        pytest.skip(f"{name} is not in ../shared/data/traces")
    assert all(len(arrival.prompt) == arrival.length for arrival in found)
    result = replay(found, blocks=3000, check=200)
    assert result.refused == 0
    assert (result.hit_rate > 0.02) == (name == "mooncake_conversation")


def test_tiers_are_drawn_by_conversation() -> None:
    arrivals = [Arrival(0.0, (0, number), 600, 1) for number in [*range(1, 301)] * 2]
    replayed = Replay(arrivals, blocks=100, block_size=BLOCK)
    replayed.run()
    tiers: list[Tier] = [one.tier for one in replayed._seen.values()]
    assert tiers[:300] == tiers[300:]
    assert {tier.name: tiers.count(tier) // 30 for tier in tiers} == pytest.approx(
        {"free": 12, "pro": 6, "enterprise": 2}, abs=2
    )
