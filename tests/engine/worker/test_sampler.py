from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.core.sampling_params import SamplingParams
from engine.worker.batch import Draw
from engine.worker.sampler import draw, measure, uniforms


def test_uniforms_are_uniform_and_reproducible() -> None:
    found = uniforms(list(range(4000)), [7] * 4000)
    assert np.array_equal(found[5:6], uniforms([5], [7]))
    along = uniforms([3] * 4000, list(range(4000)))
    for numbers in (found, along):
        assert numbers.min() >= 0
        assert numbers.max() < 1
        counts, _ = np.histogram(numbers, bins=10, range=(0, 1))
        assert counts.min() > 330
        assert counts.max() < 470
        # Neighbouring seeds and neighbouring positions tell nothing of each other.
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.06


def test_a_seed_of_any_sign_and_size_will_do() -> None:
    found = uniforms([-1, 2**64 - 1, 2**64, 0], [1, 1, 1, 1])
    assert found[0] == found[1]
    assert found[2] == found[3]


def test_greedy_and_drawn_rows_share_a_batch() -> None:
    logits = torch.tensor([[0.0, 5.0, 1.0], [0.0, 5.0, 1.0], [-1e9, -1e9, 3.0]])

    def work(temperature: float, top_k: int = 0) -> Draw:
        params = SamplingParams(max_tokens=1, temperature=temperature, top_k=top_k, seed=1)
        return Draw(1, params, [0], 1, [])

    assert draw(logits, [work(0), work(0), work(0)]) == [1, 1, 2]
    assert draw(logits, [work(0), work(2.0, top_k=1), work(1.0)]) == [1, 1, 2]


def test_logprobs_are_those_of_the_raw_logits_whatever_was_drawn_by() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])

    def work(number: int, logprobs: int | None) -> Draw:
        params = SamplingParams(max_tokens=1, temperature=1.7, top_k=1, top_p=0.1, logprobs=logprobs)
        return Draw(number, params, [0], 1, [])

    found = measure(logits, [work(1, 2), work(2, None), work(3, 0)], [0, 1, 2], [True] * 3)
    assert set(found) == {1, 3}
    total = math.log(1 + math.e + math.e**2)
    (first,), (last,) = found[1], found[3]
    assert (first.token, [token for token, _ in first.top]) == (0, [2, 1])
    assert first.logprob == pytest.approx(-total, abs=1e-5)
    assert [logprob for _, logprob in first.top] == pytest.approx([2 - total, 1 - total], abs=1e-5)
    assert (last.token, last.top) == (2, [])
    assert last.logprob == pytest.approx(2 - total, abs=1e-5)


def test_more_alternatives_than_tokens_are_all_tokens() -> None:
    params = SamplingParams(max_tokens=1, logprobs=20)
    (found,) = measure(torch.zeros(1, 3), [Draw(1, params, [0], 1, [])], [1], [True])[1]
    assert sorted(token for token, _ in found.top) == [0, 1, 2]
    assert found.logprob == pytest.approx(-math.log(3))
