"""Simulated steps take what their clock says, and the scheduler does with them what it does in the engine."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core.block_demand import BlockDemand
from engine.kv_groups import group_layers
from engine.simulation.clock import StepClock, scored, seen
from engine.simulation.serve import Service
from tests.examples import examples

STEP, TOKEN, SEQUENCE = 0.008, 25e-6, 50e-6
CLOCK = {"windows": [None], "missed": 1.0, "operators": [[[STEP, TOKEN, SEQUENCE, 0, 0, 0, 0]]]}
MACHINE = {
    "blocks": 2000,
    "max_num_seqs": 8,
    "max_batched_tokens": 512,
    "max_model_len": 8192,
    "max_itl_ratio": 0.0,
}


def simulate(arrivals: list[Any], machine: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    service = Service()
    service.answer(json.dumps({"arrivals": arrivals}))
    asked = {"machine": {**MACHINE, **(machine or {})}, "clock": CLOCK, **more}
    return service.answer(json.dumps({"simulate": asked}))


def test_a_request_alone_takes_what_the_clock_says() -> None:
    found = simulate([[5.0, 612, 3, []]])
    # 612 tokens are two steps of at most 512, and the answer's first token is of the second.
    assert found["ttft"] == [pytest.approx(2 * (STEP + SEQUENCE) + 612 * TOKEN)]
    assert found["tpot"] == found["itl"] == [pytest.approx(STEP + TOKEN + SEQUENCE)]
    assert found["steps"] == 4
    assert found["seconds"] == pytest.approx(5.0 + found["e2e"][0])
    assert found["parts"] == [[pytest.approx(found["busy"])]]


def test_a_prompt_that_came_before_is_found_again() -> None:
    found = simulate([[0.0, 1100, 2, [7, 9]], [60.0, 1100, 2, [7, 9]], [120.0, 1100, 2, [8, 9]]])
    # The tokens after the last whole hash are each prompt's own.
    assert found["hits"] == [0, 1024, 0]


def test_where_layers_keep_a_state_a_prefix_is_found_where_a_state_was_kept() -> None:
    """The second prompt leaves there what the first has in common with it, and keeps its state for the third."""
    arrivals = [[60.0 * number, 1100, 2, [7, 9]] for number in range(3)]
    assert simulate(arrivals, {"stateful": True})["hits"] == [0, 0, 1024]
    # Half of one sequence: no state is kept of prefixes.
    assert simulate(arrivals, {"stateful": True, "max_num_seqs": 1})["hits"] == [0, 0, 0]


def test_it_stops_when_too_many_are_late() -> None:
    arrivals = [[0.001 * number, 400, 20, []] for number in range(200)]
    whole = simulate(arrivals)
    stopped = simulate(arrivals, patience={"share": 0.05, "ttft": 1.0})
    assert stopped["late"] == 11
    assert stopped["steps"] < whole["steps"] / 4
    assert stopped["e2e"][-1] is None and whole["e2e"][-1] is not None


def test_what_can_never_run_is_refused() -> None:
    assert simulate([[0.0, 9000, 5, []], [0.0, 10, 1, []]])["e2e"][0] is None


def test_memory_is_the_engines() -> None:
    windows = [None if layer % 6 == 5 else 512 for layer in range(18)]
    asked = {"windows": windows, "layer_bytes": 1024, "longest": 32768, "step_tokens": 2048}
    found = Service().answer(json.dumps({"memory": asked}))
    groups = group_layers(windows, 32768)
    assert found["windows"] == [group.window for group in groups]
    assert found["block_bytes"] == len(groups[0].layers) * 1024 * 16
    assert found["request_blocks"] == BlockDemand(found["windows"], 16, 2048).of(32768)


@settings(max_examples=examples(400))
@given(st.integers(0, 300), st.integers(1, 100), st.none() | st.integers(1, 150))
def test_reads_and_pairs_are_those_of_each_token(start: int, count: int, window: int | None) -> None:
    sees = [min(position + 1, window or 10**9) for position in range(start, start + count)]
    assert scored(start, count, window) == sum(sees)
    first = start + 1 - sees[0]
    assert seen(start + count, count, window) == start + count - first


def test_an_operator_takes_the_longest_of_its_bounds() -> None:
    clock = StepClock.of(
        {"windows": [None], "missed": 0.5, "operators": [[[1, 0, 0, 0, 8, 0, 0], [0, 2, 0, 0, 0, 0, 0]]]}
    )
    assert clock.parts([1.0, 1, 1, 1, 0.5, 1, 1]) == [(5.0, 0)]
    assert clock.parts([1.0, 6, 1, 1, 0.98, 1, 1]) == [(12.0, -1)]
    with pytest.raises(ValueError, match="each bound has 7 numbers"):
        StepClock.of({"windows": [None], "missed": 1, "operators": [[[1]]]})


def test_the_command_answers_line_by_line_without_torch() -> None:
    program = (
        "import sys; from engine.__main__ import main; code = main(['simulate'])\n"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    lines = '{"arrivals": [[0, 5, 2, []]]}\n{"simulate": {}}\nnonsense\n'
    done = subprocess.run(
        [sys.executable, "-c", program], input=lines, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert answers[0] == {"arrivals": 1}
    assert all("error" in answer for answer in answers[1:])
