from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.core.logprobs import TokenLogprobs
from engine.core.sampling_params import SamplingParams
from engine.core.sampling_row import SamplingRow
from engine.worker.runner import Runner
from engine.worker.sampler import PendingLogprobs, Sampler, uniforms
from tests.engine.steps import run

GREEDY = SamplingParams(max_tokens=30, temperature=0)


def draw(
    logits: Tensor, sampling_rows: list[SamplingRow], masks: tuple[list[int], Tensor] | None = None
) -> list[int]:
    return Sampler().sample(logits, sampling_rows, masks).tolist()


def logprobs_of(
    logits: torch.Tensor, sampling_rows: list[SamplingRow], tokens: list[int], kept: list[bool]
) -> dict[int, list[TokenLogprobs]]:
    pending = PendingLogprobs(logits, sampling_rows, torch.tensor(tokens))
    return pending.read(pending.tensors, tokens, kept)


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

    def work(temperature: float, top_k: int = 0) -> SamplingRow:
        params = SamplingParams(max_tokens=1, temperature=temperature, top_k=top_k, seed=1)
        return SamplingRow(1, params, [0], 1, [])

    assert draw(logits, [work(0), work(0), work(0)]) == [1, 1, 2]
    assert draw(logits, [work(0), work(2.0, top_k=1), work(1.0)]) == [1, 1, 2]


@pytest.mark.parametrize("filters", [{}, {"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.1}, {"temperature": 0}])
def test_a_row_of_nan_is_drawn_from_somehow_and_leaves_the_others_alone(filters: dict[str, Any]) -> None:
    logits = torch.randn(3, 200, generator=torch.Generator().manual_seed(1))
    sampling_rows = [
        SamplingRow(i, SamplingParams(max_tokens=1, seed=i, **filters), [0], 1, []) for i in range(3)
    ]
    before = draw(logits, sampling_rows)
    for strange in (math.nan, math.inf, -math.inf):
        logits[1] = strange
        found = draw(logits, sampling_rows)
        assert 0 <= found[1] < 200
        assert (found[0], found[2]) == (before[0], before[2])


def test_greedy_answers_are_penalised_and_bound_too() -> None:
    logits = torch.tensor([[1.0, 5.0, 4.5, 0.0]])

    def take(**params: Any) -> int:
        sampling = SamplingParams(max_tokens=5, temperature=0, **params)
        return draw(logits, [SamplingRow(1, sampling, [2, 1], 1, [])])[0]

    assert take() == 1
    assert take(presence_penalty=1.0) == 2
    assert take(frequency_penalty=1.0) == 2
    # The prompt's token 2 is penalised as well, and stays behind.
    assert take(repetition_penalty=1.5) == 1
    assert take(repetition_penalty=100.0) == 0
    assert take(logit_bias=((3, 5.5),)) == 3
    assert take(min_tokens=2, stop_token_ids=frozenset({1})) == 2
    assert take(min_tokens=1, stop_token_ids=frozenset({1})) == 1


def test_penalised_logits_have_no_say_in_logprobs() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    params = SamplingParams(max_tokens=5, temperature=0, logit_bias=((0, 50.0),), logprobs=0)
    sampling_rows = [SamplingRow(1, params, [1], 1, [])]
    tokens = draw(logits, sampling_rows)
    (found,) = logprobs_of(logits, sampling_rows, tokens, [True])[1]
    assert tokens == [0]
    assert found.logprob == pytest.approx(-math.log(1 + math.e + math.e**2), abs=1e-5)


VOCAB = 70
some_params = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 1e-9, 0.3, 1.0, 2.0]), "seed": st.integers(0, 2**64 - 1)},
    optional={
        "top_k": st.integers(0, 2**62),
        "top_p": st.floats(0, 1),
        "min_p": st.floats(0, 1),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.sampled_from([0.01, 0.5, 1.3, 100.0]),
        "min_tokens": st.integers(0, 6),
        "stop_token_ids": st.frozensets(st.integers(0, VOCAB - 1), max_size=3),
        "logit_bias": st.lists(
            st.tuples(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, -1.0, 3.0, 100.0])), max_size=4
        ).map(tuple),
    },
)


@given(
    st.lists(st.tuples(some_params, st.sets(st.integers(0, VOCAB - 1), min_size=1)), min_size=1, max_size=5),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
    st.integers(0, 2**30),
)
def test_no_mask_is_ever_broken_and_no_neighbour_matters(
    wishes: list[tuple[dict[str, Any], set[int]]], history: list[int], seed: int
) -> None:
    logits = torch.randn(len(wishes), VOCAB, generator=torch.Generator().manual_seed(seed)) * 10
    bits = torch.zeros(len(wishes), 96, dtype=torch.uint8)
    for row, (_, allowed) in enumerate(wishes):
        bits[row, list(allowed)] = 1
    masks = torch.from_numpy(np.packbits(bits.numpy(), axis=-1, bitorder="little").view(np.int32))
    sampling_rows = [
        SamplingRow(row, SamplingParams(max_tokens=9, **params), history, 1, [])
        for row, (params, _) in enumerate(wishes)
    ]
    # The first row has no grammar.
    together = draw(
        logits, sampling_rows, (list(range(1, len(wishes))), masks[1:]) if len(wishes) > 1 else None
    )
    for row, (_, allowed) in enumerate(wishes):
        assert row == 0 or together[row] in allowed
        own = ([0], masks[row : row + 1]) if row else None
        assert draw(logits[row : row + 1], [sampling_rows[row]], own) == [together[row]]


def test_draws_of_many_seeds_fit_what_penalty_mask_and_filters_leave() -> None:
    """Pearson's chi-square, whose mean is its degrees of freedom; the seeds are fixed, so it cannot fail by chance."""
    count, vocab = 8000, 33
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(4)) * 2
    allowed = [token for token in range(vocab) if token % 3]
    history = [5, 7, 7, 7, 8]
    wish = {"temperature": 1.3, "frequency_penalty": 0.5, "presence_penalty": -1.0, "min_p": 0.02}
    left = logits.double()
    left[7] -= 3 * 0.5 - 1.0
    left[8] -= 0.5 - 1.0
    left[[token for token in range(vocab) if token not in allowed]] = float("-inf")
    expected = torch.softmax(left / 1.3, -1)
    expected[expected < 0.02 * expected.max()] = 0
    expected /= expected.sum()

    flags = np.zeros((1, 64), dtype=np.uint8)
    flags[0, allowed] = 1
    mask = torch.from_numpy(np.packbits(flags, axis=-1, bitorder="little").view(np.int32))
    sampling_rows = [
        SamplingRow(seed, SamplingParams(max_tokens=9, seed=seed, **wish), history, 1, [])
        for seed in range(count)
    ]
    tokens = draw(
        logits.expand(count, -1), sampling_rows, (list(range(count)), mask.expand(count, -1).contiguous())
    )
    found = torch.bincount(torch.tensor(tokens), minlength=vocab).double()
    cells = expected > 0
    assert found[~cells].sum() == 0
    means = expected[cells] * count
    freedom = int(cells.sum()) - 1
    assert freedom > 8
    assert means.min() > 5
    assert ((found[cells] - means) ** 2 / means).sum() < freedom + 4 * (2 * freedom) ** 0.5


def test_logprobs_are_those_of_the_raw_logits_whatever_was_drawn_by() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])

    def work(number: int, logprobs: int | None) -> SamplingRow:
        params = SamplingParams(max_tokens=1, temperature=1.7, top_k=1, top_p=0.1, logprobs=logprobs)
        return SamplingRow(number, params, [0], 1, [])

    found = logprobs_of(logits, [work(1, 2), work(2, None), work(3, 0)], [0, 1, 2], [True] * 3)
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
    (found,) = logprobs_of(torch.zeros(1, 3), [SamplingRow(1, params, [0], 1, [])], [1], [True])[1]
    assert sorted(token for token, _ in found.top) == [0, 1, 2]
    assert found.logprob == pytest.approx(-math.log(3))


def test_a_request_with_every_wish_does_not_depend_on_neighbours_or_preemption(tiny_runner: Runner) -> None:
    wishes: list[dict[str, Any]] = [
        {"repetition_penalty": 1.4, "temperature": 0},
        {"frequency_penalty": 0.7, "presence_penalty": 0.4, "temperature": 1.2, "min_p": 0.05},
        {"logit_bias": ((9, 4.0), (11, -100.0)), "top_p": 0.9, "repetition_penalty": 0.8},
        {"min_tokens": 20, "stop_token_ids": frozenset(range(40, 120)), "temperature": 0.9},
        {"temperature": 0.9, "top_k": 20},
        {"temperature": 0},
    ]
    generator = torch.Generator().manual_seed(3)
    lengths = [40, 5, 64, 17, 3, 90]
    requests = [
        (
            torch.randint(2, 320, (length,), generator=generator).tolist(),
            SamplingParams(max_tokens=30, seed=i, **wish),
        )
        for i, (length, wish) in enumerate(zip(lengths, wishes, strict=True))
    ]
    together = run(tiny_runner, requests)
    tight = run(tiny_runner, requests, blocks=13, budget=100, sequences=6)
    assert tight.preempted > 0
    assert tight.tokens == together.tokens
    alone = {i: run(tiny_runner, [request]).tokens[0] for i, request in enumerate(requests)}
    assert alone == together.tokens
    assert len(set(together.tokens[0])) > len(set(run(tiny_runner, [(requests[0][0], GREEDY)]).tokens[0]))
    assert 11 not in together.tokens[2]
    assert 20 <= len(together.tokens[3]) < 30
