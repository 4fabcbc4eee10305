from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.core.sampling_params import SamplingParams
from engine.core.sampling_row import SamplingRow
from engine.worker import rejection_sampler
from kernels import verify
from kernels.verify import reject_reference, reject_triton, verify_reference, verify_triton
from tests.kernels.triton_cases import poisoned

__all__ = ["poisoned"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "SIZES", {"CHUNK": 16})


BOTH = pytest.mark.parametrize("reject", [reject_triton, reject_reference])


def starts_of(guesses: list[int]) -> Tensor:
    """``guesses``: how many each request has."""
    return torch.tensor([0, *(count + 1 for count in guesses)]).cumsum(0).int()


@pytest.mark.parametrize("check", [verify_triton, verify_reference])
def test_guesses_count_up_to_the_first_that_is_wrong(check: Callable[..., tuple[Tensor, Tensor]]) -> None:
    counts = [0, 3, 1, 33, 64, 70, 2, 31, 32]
    starts = starts_of(counts)
    tokens = torch.randint(0, 9, (int(starts[-1]),))
    guesses = tokens.clone()
    wrong = [0, 1, 1, 33, 40, 3, 0, 31, 31]
    for start, place, count in zip(starts.tolist(), wrong, counts, strict=False):
        if place < count:
            guesses[start + place] += 1
            guesses[start + count - 1] += 1
        guesses[start + count] = 99  # Nobody asks what comes after the last guess.
    accepted, kept = check(tokens, guesses, starts)
    assert accepted.tolist() == wrong
    for start, place, count in zip(starts.tolist(), wrong, counts, strict=False):
        assert torch.equal(kept[start : start + place + 1], tokens[start : start + place + 1])
        assert (kept[start + place + 1 : start + count + 1] == -1).all()


def test_what_counts_is_what_counts_in_the_engine() -> None:
    params = SamplingParams(max_tokens=9)
    counts = [2, 0, 4]
    starts = starts_of(counts)
    tokens = torch.randint(0, 2, (int(starts[-1]),))
    guesses = torch.randint(0, 2, (int(starts[-1]),))
    sampling_rows = []
    for request, count in enumerate(counts):
        own = guesses[int(starts[request]) :][:count].tolist()
        sampling_rows += [
            SamplingRow(request, params, [0], 1, own[:i], guess) for i, guess in enumerate([*own, None])
        ]
    _, kept = verify_triton(tokens, guesses, starts)
    assert (kept >= 0).tolist() == rejection_sampler.accepted(sampling_rows, tokens.tolist())


@BOTH
def test_the_outcome_is_spread_as_the_target_whatever_the_draft(reject) -> None:
    """All guesses, and grids of the uniform numbers so fine that each outcome has exactly its share of them."""
    p = torch.tensor([1, 1, 3, 3, 0]) / 8
    q = torch.tensor([2, 4, 2, 0, 0]) / 8
    # The residual is (0, 0, 1, 3, 0) / 8. Guesses of tokens 0 and 1 count one time in two and in four.
    cases = [
        (guess, (i + 0.5) / 4, (j + 0.5) / 4)
        for guess in q.nonzero().flatten().tolist()
        for i in range(4)
        for j in range(4)
    ]
    count = len(cases)
    rows = torch.arange(2 * count) % 2 == 0
    guesses, accept = torch.full((2 * count,), 99), torch.full((2 * count,), float("nan"))
    guesses[rows] = torch.tensor([guess for guess, _, _ in cases])
    accept[rows] = torch.tensor([number for _, number, _ in cases])
    uniform = torch.tensor([number for _, _, number in cases])
    target = p.repeat(2 * count, 1)
    target[~rows] = torch.tensor([0.0, 0.25, 0.25, 0.0, 0.5])
    draft = q.repeat(2 * count, 1)
    draft[~rows] = float("nan")
    accepted, kept = reject(target, draft, guesses, accept, uniform, starts_of([1] * count))
    weights = q[guesses[rows]] / 16
    found = torch.zeros(5).index_add_(0, kept[rows], weights)
    torch.testing.assert_close(found, p)
    # After a guess that counts comes a token of the next row's distribution, after another none.
    after = kept[~rows]
    assert (after[accepted == 0] == -1).all()
    shares = torch.zeros(5).index_add_(0, after[accepted == 1], weights[accepted == 1])
    torch.testing.assert_close(shares / shares.sum(), target[1])


@pytest.mark.parametrize("vocab", [15, 16, 17, 50])
def test_equals_the_reference(vocab: int) -> None:
    counts = [0, 1, 4, 2, 0, 5, 3]
    starts = starts_of(counts)
    rows = int(starts[-1])
    p, q = torch.softmax(torch.randn(rows, 2 * vocab), -1)[:, :vocab], torch.randn(rows, vocab).softmax(-1)
    q = (q + p) / 2
    q[2] = p[2] = torch.eye(vocab)[3]
    guesses = torch.multinomial(q, 1).squeeze(1)
    # Of what no draft is there to be read.
    last = starts[1:].long() - 1
    q[last], guesses[last] = float("nan"), 10**6
    accept, uniform = torch.rand(rows), torch.rand(len(counts))
    uniform[5] = 1 - 2**-24
    inputs = (p, q, guesses, accept, uniform, starts)
    accepted, kept = reject_triton(*inputs)
    expected = reject_reference(*inputs)
    assert torch.equal(accepted, expected[0])
    assert torch.equal(kept, expected[1])


@BOTH
def test_a_draft_that_is_the_target_is_always_right(reject) -> None:
    p = torch.randn(4, 6).softmax(-1)
    guesses = torch.tensor([1, 5, 0, 0])
    almost = torch.full((4,), 1 - 2**-24)
    accepted, kept = reject(p, p.clone(), guesses, almost, almost[:1], starts_of([3]))
    assert accepted.tolist() == [3]
    assert kept.tolist() == [1, 5, 0, 5]
    # Even where rounding says that it is not.
    accepted, kept = reject(p, p.clone(), guesses, torch.ones(4), almost[:1], starts_of([3]))
    assert accepted.tolist() == [0]
    assert kept.tolist() == [1, -1, -1, -1]
