from __future__ import annotations

import numpy as np
import torch

from engine.core.plan import Work
from engine.core.sampling_params import SamplingParams
from engine.worker.sampler import draw, uniforms


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

    def work(temperature: float, top_k: int = 0) -> Work:
        params = SamplingParams(max_tokens=1, temperature=temperature, top_k=top_k, seed=1)
        return Work(1, [0], 0, [0], params, True)

    assert draw(logits, [work(0), work(0), work(0)]) == [1, 1, 2]
    assert draw(logits, [work(0), work(2.0, top_k=1), work(1.0)]) == [1, 1, 2]
