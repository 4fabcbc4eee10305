from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.prefill_chunk import PrefillChunkController


def drive(
    controller: PrefillChunkController,
    quiet: float,
    per_token: float,
    steps: int = 200,
    noise: float = 0.0,
    prompts: int = 1,
    fixed: float = 0.0,
) -> list[float]:
    """Seconds of the steps of a machine that takes ``per_token`` more for each token of a prompt, ``fixed`` for any."""
    chance = random.Random(1)
    found = []
    for _ in range(steps):
        chunk = controller.chunk(prompts)
        seconds = (quiet + fixed * (chunk > 0) + chunk * per_token) * (1 + noise * chance.random())
        controller.observe(seconds, prefill_tokens=chunk, decode_tokens=4)
        found.append(seconds)
    return found


@pytest.mark.parametrize("quiet", [0.002, 0.02, 0.2])
@pytest.mark.parametrize("tokens_in_a_quiet_step", [16, 60, 300])
def test_steps_settle_below_the_limit_and_use_what_it_allows(
    quiet: float, tokens_in_a_quiet_step: int
) -> None:
    controller = PrefillChunkController(2.0, 512)
    seconds = drive(controller, quiet, quiet / tokens_in_a_quiet_step, noise=0.1)[30:]
    assert max(seconds) <= 2.0 * quiet
    assert sum(seconds) / len(seconds) >= 1.4 * quiet


def test_the_first_step_beside_others_is_quiet_and_so_is_one_in_many() -> None:
    controller = PrefillChunkController(2.0, 512)
    assert controller.chunk() == 0
    seconds = drive(controller, 0.01, 0.0001, steps=200)
    assert seconds[0] == 0.01
    assert 3 <= seconds.count(0.01) <= 4


def test_prompts_that_pile_up_get_room_for_each() -> None:
    controller = PrefillChunkController(2.0, 2048)
    alone = max(drive(controller, 0.01, 0.0001)[30:])
    several = drive(controller, 0.01, 0.0001, prompts=5)[30:]
    assert alone <= 0.02
    assert 0.03 <= max(several) <= 0.06
    # When all but one are done, the gaps are short again at once.
    assert max(drive(controller, 0.01, 0.0001, steps=20)) <= 0.02


def test_a_machine_that_gets_slower_is_noticed() -> None:
    controller = PrefillChunkController(2.0, 512)
    drive(controller, 0.01, 0.0001)
    before = controller.chunk() or 60
    seconds = drive(controller, 0.01, 0.0004)
    assert max(seconds[20:]) <= 0.02
    assert controller.chunk() < before


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize(("quiet", "fixed"), [(0.001, 0.007), (0.003, 0.005), (0.002, 0.0015)])
def test_where_any_chunk_costs_more_than_is_allowed_chunks_are_large_all_the_same(
    quiet: float, fixed: float, noise: float
) -> None:
    """As on a GPU, where steps with prompts are not recorded: a share of 8 tokens would be a step of 8 ms each."""
    controller = PrefillChunkController(2.0, 2048)
    seconds = drive(controller, quiet, 1e-5, noise=noise, fixed=fixed)[30:]
    assert min(controller.chunk() or 2048, 2048) >= 100
    assert max(seconds) <= 2.0 * (quiet + fixed)


def test_where_it_costs_less_the_limit_holds() -> None:
    controller = PrefillChunkController(2.0, 2048)
    seconds = drive(controller, 0.01, 1e-4, noise=0.1, fixed=0.003)[30:]
    assert max(seconds) <= 0.02
    assert (controller.chunk() or 30) >= 20


def test_without_a_limit_chunks_are_as_large_as_can_be() -> None:
    controller = PrefillChunkController(0.0, 512)
    drive(controller, 0.01, 1.0, steps=3)
    assert controller.chunk() == 512


@given(
    st.lists(st.tuples(st.floats(0, 10), st.integers(0, 600), st.integers(0, 300)), max_size=60),
    st.floats(1.01, 10),
)
def test_whatever_is_measured_chunks_stay_within_bounds_and_prompts_go_on(
    steps: list[tuple[float, int, int]], limit: float
) -> None:
    controller = PrefillChunkController(limit, 512)
    for seconds, prefill, decode in steps:
        controller.observe(seconds, prefill_tokens=prefill, decode_tokens=decode)
        assert 0 <= controller.chunk() <= 512
    controller.observe(0.01, prefill_tokens=0, decode_tokens=1)
    assert controller.chunk() >= 8
