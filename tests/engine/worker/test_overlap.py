"""The real runner with steps that are launched before the tokens of those before them are known: on a CPU each is
computed when it is submitted, but with the tokens that the sampler left in its tensor, as on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.core.plan import PENDING, Plan, ScheduledRequest
from engine.core.sampling_params import Grammar, ReasoningBudget, SamplingParams
from engine.worker.runner import Runner
from tests.engine.steps import run

GREEDY = SamplingParams(max_tokens=24, temperature=0)
KINDS = [
    GREEDY,
    SamplingParams(max_tokens=30, seed=3, top_p=0.9),
    SamplingParams(max_tokens=20, seed=4, frequency_penalty=1.5, presence_penalty=0.5),
    SamplingParams(max_tokens=20, temperature=0, repetition_penalty=1.3, logprobs=2),
    SamplingParams(max_tokens=20, seed=5, min_tokens=8, stop_token_ids=frozenset(range(0, 320, 3))),
    SamplingParams(max_tokens=15, temperature=0, logit_bias=((7, 100.0), (9, 99.0)), frequency_penalty=2.0),
    SamplingParams(max_tokens=12, temperature=0, grammar=Grammar("regex", "[a-z ]{40,}")),
    SamplingParams(max_tokens=12, seed=6, reasoning=ReasoningBudget(4, None, 11, (11, 12, 13))),
    SamplingParams(max_tokens=1, seed=7, logprobs=0),
    SamplingParams(max_tokens=6, temperature=0, prompt_logprobs=1),
]
LENGTHS = [40, 3, 61, 17, 16, 33, 20, 9, 31, 50]
REQUESTS = [
    ([2 + (i * n + j) % 300 for j in range(n)], one)
    for i, (n, one) in enumerate(zip(LENGTHS, KINDS, strict=True))
]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"sequences": 4, "budget": 16, "late": 2},
        {"blocks": 10, "budget": 64, "sequences": 16},
        {"choices": 3, "late": 1},
        {"forecasts": 4, "late": 3},
    ],
    ids=["together", "one after the other", "few blocks", "choices", "drafts"],
)
def test_overlap_changes_no_token(tiny_runner: Runner, options: dict[str, int]) -> None:
    in_turn, overlapped = (run(tiny_runner, REQUESTS, ahead=ahead, **options) for ahead in (False, True))
    assert overlapped.tokens == in_turn.tokens
    assert overlapped.logprobs == in_turn.logprobs
    assert overlapped.ahead > (0 if "forecasts" in options else overlapped.steps / 2)
    assert in_turn.ahead == 0
    if "blocks" in options:
        assert overlapped.preempted > 0


def test_a_token_that_is_not_known_is_taken_from_where_it_was_sampled(tiny_runner: Runner) -> None:
    """Two requests change places between the steps, and a third has a prompt of its own."""
    blocks = [[i] for i in range(3)]
    first, second = [5, 6, 7], [9, 8]
    plan = Plan(
        [
            ScheduledRequest(number, prompt, 0, blocks[number], GREEDY, False, list(prompt), len(prompt))
            for number, prompt in ((0, first), (1, second))
        ]
    )
    step = tiny_runner.submit(plan)
    assert step.sampled is not None
    following = Plan(
        [
            ScheduledRequest(1, [PENDING], 2, blocks[1], GREEDY, True, plan.requests[1].history, 2),
            ScheduledRequest(2, [4, 4, 4, 4], 0, blocks[2], GREEDY, False, [4, 4, 4, 4], 4),
            ScheduledRequest(0, [PENDING], 3, blocks[0], GREEDY, True, plan.requests[0].history, 3),
        ],
        ahead=True,
    )
    ahead = tiny_runner.submit(following, step)
    assert ahead.sampled is None
    found = tiny_runner.collect(step).tokens
    for scheduled in plan.requests:
        scheduled.history.extend(found[scheduled.request_id])
    tiny_runner.sample(ahead, dropped={2})
    tokens = tiny_runner.collect(ahead).tokens
    alone = run(
        tiny_runner, [(first, replace(GREEDY, max_tokens=2)), (second, replace(GREEDY, max_tokens=2))]
    )
    assert {number: found[number] + tokens[number] for number in (0, 1)} == alone.tokens
    assert 2 not in tokens
    tiny_runner.execute(Plan(ended=[0, 1, 2]))


def test_where_the_device_is_the_cpu_or_one_of_several_nothing_is_gained(tiny_runner: Runner) -> None:
    assert not tiny_runner.runs_ahead
