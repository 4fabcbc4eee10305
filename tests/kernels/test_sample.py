from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.sample import CANDIDATE_COUNTS, sample_reference

HEAD = CANDIDATE_COUNTS[0]


def draw(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    count: int = 1,
) -> Tensor:
    """``count`` draws from one row, their uniforms spread evenly."""
    vocab = logits.shape[-1]
    return sample_reference(
        logits.expand(count, vocab),
        torch.full((count,), temperature),
        torch.full((count,), top_k or vocab),
        torch.full((count,), top_p),
        torch.full((count,), min_p),
        (torch.arange(count, dtype=torch.float64) + 0.5) / count,
    )


def exactly(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Tensor:
    """The probabilities that a plain reading of the filters gives, float64 [vocab]."""
    probs = torch.softmax(logits.double() / temperature, -1)
    probs[probs < min_p * probs.max()] = 0
    order = probs.argsort(descending=True)
    probs[order[top_k or len(order) :]] = 0
    probs /= probs.sum()
    sorted_probs = probs[order]
    beyond = sorted_probs.cumsum(0) - sorted_probs >= top_p
    beyond[0] = False
    probs[order[beyond]] = 0
    return probs / probs.sum()


def shares(tokens: Tensor, vocab: int) -> Tensor:
    return torch.bincount(tokens, minlength=vocab) / len(tokens)


def test_temperature_0_takes_the_first_largest() -> None:
    assert draw(torch.tensor([0.0, 3.0, 3.0, 1.0]), temperature=0).tolist() == [1]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_have_the_softmax_shares(temperature: float) -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, 0.5])
    found = shares(draw(logits, temperature=temperature, count=20000), 5)
    torch.testing.assert_close(found, torch.softmax(logits / temperature, -1), atol=1e-3, rtol=0)


def test_top_k_keeps_k_and_renormalises() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, 0.5])
    found = shares(draw(logits, top_k=2, count=20000), 5)
    kept = torch.softmax(torch.tensor([1.0, 2.0]), -1)
    torch.testing.assert_close(found[[0, 3]], kept, atol=1e-3, rtol=0)
    assert found[[1, 2, 4]].sum() == 0


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert set(draw(logits, top_p=0.7, count=1000).tolist()) == {0, 1}
    assert set(draw(logits, top_p=0.81, count=1000).tolist()) == {0, 1, 2}
    assert set(draw(logits, top_p=1e-9, count=1000).tolist()) == {0}
    assert set(draw(logits, top_p=0.0, count=1000).tolist()) == {0}


def test_min_p_is_a_share_of_the_likeliest() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert set(draw(logits, min_p=0.59, count=1000).tolist()) == {0, 1}
    assert set(draw(logits, min_p=0.31, count=1000).tolist()) == {0, 1}
    assert set(draw(logits, min_p=0.29, count=1000).tolist()) == {0, 1, 2}
    assert set(draw(logits, min_p=1.0, count=1000).tolist()) == {0}
    # It goes by the distribution that temperature leaves: 0.3 / 0.5 squared is 0.36.
    assert set(draw(logits, min_p=0.4, temperature=0.5, count=1000).tolist()) == {0}


def test_top_p_counts_what_min_p_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    # Of the two that min-p keeps, the first has 0.4 / 0.7 = 0.57.
    assert set(draw(logits, min_p=0.6, top_p=0.55, count=1000).tolist()) == {0}
    assert set(draw(logits, min_p=0.6, top_p=0.6, count=1000).tolist()) == {0, 1}


def test_top_p_counts_what_top_k_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    # Of the two that top-k keeps, the first has 0.4 / 0.7 = 0.57.
    assert set(draw(logits, top_k=2, top_p=0.55, count=1000).tolist()) == {0}
    assert set(draw(logits, top_k=2, top_p=0.6, count=1000).tolist()) == {0, 1}


@pytest.mark.parametrize("top_k", [None, HEAD // 2, HEAD, HEAD + 64])
@pytest.mark.parametrize("top_p", [0.3, 0.999])
@pytest.mark.parametrize("min_p", [0.0, 0.3, 0.6])
def test_the_short_cut_changes_nothing(top_k: int | None, top_p: float, min_p: float) -> None:
    """A flat distribution over many tokens, whose nucleus is larger than the head, against a plain filter."""
    vocab = HEAD + 128
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(0)) * 0.3
    expected = exactly(logits, top_k=top_k, top_p=top_p, min_p=min_p)
    found = draw(logits, top_k=top_k, top_p=top_p, min_p=min_p, count=4000)
    assert set(found.tolist()) == set(expected.nonzero().squeeze(1).tolist())


FILTERS = [
    {},
    {"temperature": 0.6},
    {"top_k": 7},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"top_k": 9, "top_p": 0.7},
    {"min_p": 0.05, "top_p": 0.9},
    {"min_p": 0.02, "top_k": 12},
    {"temperature": 1.4, "min_p": 0.02, "top_k": 20, "top_p": 0.85},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("vocab", [30, HEAD + 50])
def test_draws_fit_the_exact_distribution(filters: dict[str, float], vocab: int) -> None:
    """Pearson's chi-square with uniforms of a fixed seed; its expectation is its degrees of freedom."""
    count = 20_000
    generator = torch.Generator().manual_seed(11)
    logits = torch.randn(vocab, generator=generator) * 2
    expected = exactly(logits, **filters)
    tokens = sample_reference(
        logits.expand(count, vocab),
        torch.full((count,), filters.get("temperature", 1.0)),
        torch.full((count,), filters.get("top_k", vocab)),
        torch.full((count,), filters.get("top_p", 1.0)),
        torch.full((count,), filters.get("min_p", 0.0)),
        torch.rand(count, generator=generator, dtype=torch.float64),
    )
    found = torch.bincount(tokens, minlength=vocab).double()
    assert found[expected == 0].sum() == 0
    # Cells that expect fewer than five are thrown together, as the test asks for.
    rare = expected * count < 5
    cells = torch.cat([found[~rare], found[rare].sum()[None]])
    means = torch.cat([expected[~rare], expected[rare].sum()[None]]) * count
    cells, means = cells[means > 0], means[means > 0]
    freedom = len(cells) - 1
    assert ((cells - means) ** 2 / means).sum() < freedom + 4 * (2 * freedom) ** 0.5 + 4


def test_a_barred_token_is_never_drawn_and_the_only_one_left_always() -> None:
    logits = torch.full((HEAD + 40,), float("-inf"))
    logits[[3, 290]] = torch.tensor([-100.0, -100.7])
    for filters in FILTERS:
        assert set(draw(logits, **filters, count=500).tolist()) == {3, 290}
    logits[3] = float("-inf")
    for filters in [*FILTERS, {"temperature": 0.0}, {"top_p": 0.0}, {"min_p": 1.0}]:
        assert set(draw(logits, **filters, count=50).tolist()) == {290}


@pytest.mark.parametrize("temperature", [1e-3, 1e-4, 1e-5, 1e-6, 1e-30, 1e-44])
def test_the_coldest_draw_is_greedy(temperature: float) -> None:
    logits = torch.tensor([1e4, -3e4, 2e4, float("-inf")])
    assert set(draw(logits, temperature=temperature, count=100).tolist()) == {2}


def test_a_row_is_drawn_the_same_whoever_shares_the_batch() -> None:
    generator = torch.Generator().manual_seed(5)
    rows = 24
    logits = torch.randn(rows, 1000, generator=generator) * 2
    temperature = torch.rand(rows, generator=generator) * 1.5
    temperature[::5] = 0
    top_k = torch.randint(1, 1001, (rows,), generator=generator)
    top_k[::3] = 1000
    top_p = torch.rand(rows, generator=generator)
    top_p[::4] = 1
    min_p = torch.rand(rows, generator=generator) * 0.1
    min_p[::2] = 0
    logits[::6, 7:] = float("-inf")
    uniform = torch.rand(rows, generator=generator, dtype=torch.float64)
    parameters = (logits, temperature, top_k, top_p, min_p, uniform)
    together = sample_reference(*parameters)
    alone = torch.cat([sample_reference(*(p[i : i + 1] for p in parameters)) for i in range(rows)])
    assert torch.equal(together, alone)


@given(
    st.lists(st.floats(-50, 50) | st.just(float("-inf")), min_size=1, max_size=40).filter(
        lambda row: max(row) > float("-inf")
    ),
    st.floats(0, 2),
    st.integers(1, 40),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1, exclude_max=True),
)
def test_always_draws_a_token_that_the_filters_allow(
    row: list[float], temperature: float, top_k: int, top_p: float, min_p: float, uniform: float
) -> None:
    logits = torch.tensor([row], dtype=torch.float32)
    top_k = min(top_k, len(row))
    (token,) = sample_reference(
        logits,
        torch.tensor([temperature], dtype=torch.float32),
        torch.tensor([top_k]),
        torch.tensor([top_p]),
        torch.tensor([min_p]),
        torch.tensor([uniform], dtype=torch.float64),
    ).tolist()
    assert logits[0, token] > float("-inf")
    assert int((logits[0] > logits[0, token]).sum()) < top_k
    if temperature > 1e-4 and min_p > 0:
        least = logits.max() + temperature * math.log(min_p)
        assert logits[0, token] >= least - 1e-3
