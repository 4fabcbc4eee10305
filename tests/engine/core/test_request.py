from __future__ import annotations

from engine.core.request import Request
from engine.core.sampling_params import SamplingParams


def test_counts_what_is_missing_and_what_was_generated() -> None:
    request = Request(1, [5, 6, 7], SamplingParams(max_tokens=4))
    assert (request.missing, request.generated, request.longest) == (3, 0, 6)
    request.computed = 3
    assert request.append(9) is None
    assert (request.missing, request.generated) == (1, 1)


def test_ends_at_a_stop_token_or_at_its_length() -> None:
    params = SamplingParams(max_tokens=3, stop_token_ids=frozenset({2}))
    request = Request(1, [5], params)
    assert [request.append(token) for token in (8, 8, 8)] == [None, None, "length"]
    request = Request(1, [2], params)
    assert [request.append(token) for token in (8, 2)] == [None, "stop"]
    # At the last place, a stop token is a stop.
    request = Request(1, [5], params)
    assert [request.append(token) for token in (8, 8, 2)] == [None, None, "stop"]


def test_does_not_touch_the_callers_prompt() -> None:
    prompt = [1, 2]
    Request(1, prompt, SamplingParams(max_tokens=3)).append(3)
    assert prompt == [1, 2]


def test_of_several_tokens_those_up_to_the_end_count() -> None:
    params = SamplingParams(max_tokens=4, stop_token_ids=frozenset({2}))
    for sampled, counted, finish in (
        ([8, 8, 8], [8, 8, 8], None),
        ([8, 2, 8], [8, 2], "stop"),
        ([8, 8, 8, 8], [8, 8, 8, 8], "length"),
        ([8, 8, 8, 2, 9], [8, 8, 8, 2], "stop"),
        ([8, 8, 8, 8, 2], [8, 8, 8, 8], "length"),
    ):
        request = Request(1, [5], params)
        assert request.extend(sampled) == (counted, finish)
        assert request.tokens == [5, *counted]
