from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.core.plan import Plan, ScheduledRequest
from engine.core.sampling_params import SamplingParams
from engine.worker.ngram import SHORTEST, NgramProposer, _Text
from engine.worker.runner import Runner
from engine.worker.speculative import FixedDraftLength
from tests.engine.worker.drafting import drive


def drafted(tokens: list[int], count: int = 4) -> list[int]:
    text = _Text()
    text.extend(tokens)
    return text.propose(count)


def test_it_drafts_what_followed_before() -> None:
    assert drafted([1, 2, 3, 4, 5, 6, 7, 9, 1, 2, 3]) == [4, 5, 6, 7]
    assert drafted([1, 2, 3, 4, 5, 6, 7, 9, 1, 2, 3], count=2) == [4, 5]


def test_the_longest_match_wins_and_the_latest_of_equals() -> None:
    assert drafted([9, 1, 2, 3, 4, 8, 1, 2, 3, 5, 9, 1, 2, 3], count=1) == [4]
    assert drafted([7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 9, 1, 2, 3], count=1) == [5]


def test_a_match_shorter_than_three_is_none() -> None:
    assert SHORTEST == 3
    assert drafted([1, 2, 5, 1, 2]) == []
    assert drafted([]) == []
    assert drafted([1, 2, 3]) == []


def test_a_text_that_goes_in_circles_goes_on_in_circles() -> None:
    assert drafted([8, 1, 2, 1, 2, 1, 2], count=5) == [1, 2, 1, 2, 1]
    assert drafted([5] * 6, count=3) == [5, 5, 5]


def plainly(tokens: list[int], count: int) -> list[int]:
    """By comparing every place with the end."""
    lengths = {}
    for place in range(len(tokens) - 1):
        length = 0
        while length <= place and length < 32 and tokens[place - length] == tokens[-1 - length]:
            length += 1
        lengths[place] = length
    if not lengths or max(lengths.values()) < SHORTEST:
        return []
    best = max(lengths, key=lambda place: (lengths[place], place))
    copied = list(tokens[best + 1 :])
    while len(copied) < count:
        copied.append(copied[len(copied) - (len(tokens) - best - 1)])
    return copied[:count]


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(1, 9), max_size=12), st.integers(1, 6))
def test_it_is_the_plain_search_however_the_text_comes_in(
    tokens: list[int], parts: list[int], count: int
) -> None:
    text = _Text()
    start = 0
    for part in [*parts, 60]:
        text.extend(tokens[start : start + part])
        start += part
        found, expected = text.propose(count), plainly(text.tokens, count)
        # Places further back than the latest 16 are not looked at.
        if len(text.tokens) <= 19:
            assert found == expected
        else:
            assert bool(found) == bool(expected)


def test_it_reads_prompts_as_they_are_computed_and_forgets() -> None:
    lookup = NgramProposer()
    prompt = [1, 2, 3, 4, 5, 1, 2]
    params = SamplingParams(max_tokens=9)

    def look(
        start: int, end: int, sampled: list[int], lookahead: int, num_draft_tokens: int = 0
    ) -> dict[int, list[int]]:
        sampling = params if sampled else None
        scheduled = ScheduledRequest(
            3,
            [0] * (end - start),
            start,
            [],
            sampling,
            False,
            prompt,
            7,
            num_draft_tokens=num_draft_tokens,
            lookahead=lookahead,
        )
        able = lookup.look(Plan([scheduled]), {3: sampled}, {3: lookahead} if lookahead else {})
        return lookup.propose(lookup.prepare(able)) if able else {}

    assert look(0, 4, [], 0) == {}
    assert look(4, 7, [3], 2) == {3: [4, 5]}
    prompt += [3]
    assert look(7, 10, [4, 9], 2, num_draft_tokens=2) == {}
    prompt += [4, 9]
    assert look(9, 10, [1], 0) == {}
    prompt += [1]
    assert look(10, 11, [2], 0) == {}
    prompt += [2]
    assert look(11, 12, [3], 3) == {3: [4, 9, 1]}
    lookup.forget([3, 4])
    assert look(12, 13, [3], 0) == {}


@pytest.fixture(scope="module")
def looking(tiny_model: Path) -> Runner:
    runner = Runner(EngineConfig(model=tiny_model, kv_cache_blocks=200, speculation="ngram", threads=1))
    assert runner.speculation is not None
    runner.speculation.policy = FixedDraftLength(4)
    return runner


@pytest.mark.parametrize("disturb", [0.0, 0.15])
@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_no_token_changes(tiny_runner: Runner, looking: Runner, disturb: float, temperature: float) -> None:
    numbers = random.Random(2)
    requests = []
    for i in range(8):
        phrase = [numbers.randrange(2, 300) for _ in range(7 + i)]
        # A bias towards three tokens makes an answer repeat itself.
        biased = tuple((token, 9.0) for token in phrase[:3])
        params = SamplingParams(max_tokens=40, temperature=temperature, seed=i, logit_bias=biased)
        requests.append((phrase * 3, params))
    plain = drive(tiny_runner, requests)
    reported = drive(looking, requests, chunk=16, disturb=disturb)
    assert reported.tokens == plain.tokens
    assert reported.checked > 50
    assert sum(reported.kept) > 10
