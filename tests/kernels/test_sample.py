from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from kernels.sample import HEAD, sample_reference


def draw(
    logits: Tensor, *, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0, count: int = 1
) -> Tensor:
    """``count`` draws from one row, their uniforms spread evenly."""
    vocab = logits.shape[-1]
    return sample_reference(
        logits.expand(count, vocab),
        torch.full((count,), temperature),
        torch.full((count,), top_k or vocab),
        torch.full((count,), top_p),
        (torch.arange(count, dtype=torch.float64) + 0.5) / count,
    )


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


def test_top_p_counts_what_top_k_left() -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    # Of the two that top-k keeps, the first has 0.4 / 0.7 = 0.57.
    assert set(draw(logits, top_k=2, top_p=0.55, count=1000).tolist()) == {0}
    assert set(draw(logits, top_k=2, top_p=0.6, count=1000).tolist()) == {0, 1}


@pytest.mark.parametrize("top_k", [None, HEAD // 2, HEAD + 64])
@pytest.mark.parametrize("top_p", [0.3, 0.999])
def test_the_short_cut_changes_nothing(top_k: int | None, top_p: float) -> None:
    """A flat distribution over many tokens, whose nucleus is larger than the head, against a plain filter."""
    vocab = HEAD + 128
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(0)) * 0.3
    probs = torch.softmax(logits.double(), -1)
    order = probs.argsort(descending=True)[: top_k or vocab]
    mass = probs[order] / probs[order].sum()
    expected = set(order[: int((mass.cumsum(0) - mass < top_p).sum())].tolist())
    assert set(draw(logits, top_k=top_k, top_p=top_p, count=4000).tolist()) == expected


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
    uniform = torch.rand(rows, generator=generator, dtype=torch.float64)
    parameters = (logits, temperature, top_k, top_p, uniform)
    together = sample_reference(*parameters)
    alone = torch.cat([sample_reference(*(p[i : i + 1] for p in parameters)) for i in range(rows)])
    assert torch.equal(together, alone)


@given(
    st.lists(st.floats(-50, 50), min_size=1, max_size=40),
    st.floats(0, 2),
    st.integers(1, 40),
    st.floats(0, 1),
    st.floats(0, 1, exclude_max=True),
)
def test_always_draws_a_token_that_top_k_allows(
    row: list[float], temperature: float, top_k: int, top_p: float, uniform: float
) -> None:
    logits = torch.tensor([row], dtype=torch.float32)
    top_k = min(top_k, len(row))
    (token,) = sample_reference(
        logits,
        torch.tensor([temperature]),
        torch.tensor([top_k]),
        torch.tensor([top_p]),
        torch.tensor([uniform], dtype=torch.float64),
    ).tolist()
    assert int((logits[0] > logits[0, token]).sum()) < top_k
