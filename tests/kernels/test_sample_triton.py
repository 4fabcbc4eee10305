from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.core.sampling_params import SamplingParams
from engine.core.sampling_row import SamplingRow
from engine.worker import logit_editor, sampler
from kernels import sample
from kernels.sample import sample_reference, sample_triton
from tests.kernels.test_sample import exactly
from tests.kernels.triton_cases import poisoned

__all__ = ["poisoned"]

SMALL = {"CHUNK": 64, "CANDIDATES": 128, "BLOCK": 128, "WAYS": 256}
"""More ways make fewer passes, which is what takes time in the interpreter."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "SIZES", SMALL)


def parameters(
    rows: int,
    vocab: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> tuple[Tensor, ...]:
    return (
        torch.full((rows,), temperature),
        torch.full((rows,), top_k or vocab),
        torch.full((rows,), top_p),
        torch.full((rows,), min_p),
    )


def draw(logits: Tensor, uniform: Tensor, **filters: float) -> list[int]:
    """One token for each of ``uniform``, all from one row."""
    rows, vocab = len(uniform), len(logits)
    return sample_triton(logits.expand(rows, vocab), *parameters(rows, vocab, **filters), uniform).tolist()


FILTERS = [
    {"temperature": 0.6},
    {"min_p": 0.2},
    {"top_k": 3},
    {"top_p": 0.8},
    {"temperature": 1.4, "min_p": 0.02, "top_k": 5, "top_p": 0.85},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_each_token_has_exactly_its_share_of_the_uniform_numbers(filters: dict[str, float]) -> None:
    """The token changes where a cumulative probability lies, and nowhere else: then uniform numbers give its shares."""
    logits = torch.randn(7) * 1.5
    probs = exactly(logits, **filters)
    in_order = "top_k" not in filters and "top_p" not in filters
    order = torch.arange(7) if in_order else logits.argsort(descending=True)
    ids, ends = order[probs[order] > 0], probs[order].cumsum(0)[probs[order] > 0]
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    least = 2e-6
    inside = ends - starts > 3 * least
    uniform = torch.cat([(starts + least)[inside], (ends - least)[inside]])
    assert draw(logits, uniform, **filters) == ids[inside].repeat(2).tolist()


@pytest.mark.parametrize(
    ("vocab", "sizes"),
    [
        pytest.param(150, SMALL, id="all are candidates"),
        pytest.param(193, SMALL | {"BLOCK": 64, "WAYS": 64}, id="candidates in several blocks"),
        pytest.param(129, SMALL | {"CANDIDATES": 4, "BLOCK": 64}, id="too many candidates"),
    ],
)
def test_draws_what_the_reference_draws(
    vocab: int, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "SIZES", sizes)
    rows = 10
    logits = torch.randn(rows, vocab) * 2
    temperature = torch.rand(rows) * 1.2 + 0.3
    temperature[3] = 0
    top_k = torch.randint(1, vocab + 1, (rows,))
    top_k[::3] = vocab
    top_p, min_p = torch.rand(rows), torch.rand(rows) * 0.1
    top_p[::4], min_p[::2] = 1, 0
    logits[::5, 7:50] = float("-inf")
    inputs = (logits, temperature, top_k, top_p, min_p, torch.rand(rows, dtype=torch.float64))
    assert torch.equal(sample_triton(*inputs), sample_reference(*inputs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_takes_sixteen_bits_and_rows_that_lie_apart(dtype: torch.dtype) -> None:
    rows, vocab = 6, 65
    wide = torch.randn(rows, 2 * vocab).to(dtype)
    uniform = torch.rand(rows, dtype=torch.float64)
    for filters in ({}, {"top_k": 9, "top_p": 0.9}):
        inputs = (wide[:, :vocab], *parameters(rows, vocab, **filters), uniform)
        assert torch.equal(sample_triton(*inputs), sample_reference(*inputs))


@pytest.mark.parametrize("vocab", [1, 63, 64, 65, 130])
def test_greedy_rows_take_the_first_largest(vocab: int) -> None:
    logits = torch.randint(0, 3, (3, vocab)).float()
    logits[0] = 1
    logits[2, -1] = 9
    inputs = (*parameters(3, vocab, temperature=0), torch.rand(3))
    assert sample_triton(logits, *inputs).tolist() == [row.index(max(row)) for row in logits.tolist()]


def test_of_equal_tokens_the_first_are_kept() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0, 2.0, 1.0, 1.0, 1.0]).repeat_interleave(20)
    uniform = torch.tensor([0.0, 0.5, 0.9999999])
    # 40 tokens of weight 1, then 80 of e^-1, of which top-k takes ten: the first ten of token 2's.
    first, _, last = draw(logits, uniform, top_k=50)
    assert (first, last) == (20, 49)
    # A sum of 0.5 is reached by so many of the 40.
    total = 40 + 80 / torch.tensor(1.0).exp().item() + 20 / torch.tensor(2.0).exp().item()
    enough = int(total * 0.4) + 1
    kept = [*range(20, 40), *range(60, 80)][:enough]
    assert [draw(logits, uniform, top_p=0.4)[at] for at in (0, 2)] == [kept[0], kept[-1]]


def test_filters_that_keep_one_token_and_uniforms_at_the_ends() -> None:
    logits = torch.tensor([0.0, 1.0, 3.0, 2.0, -1.0])
    uniform = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    for filters in ({"top_k": 1}, {"top_p": 0.0}, {"top_p": 1e-9}, {"min_p": 1.0}, {"temperature": 1e-5}):
        assert draw(logits, uniform, **filters) == [2, 2]
    assert draw(logits, uniform) == [0, 4]
    assert draw(logits, uniform, top_k=4) == [2, 0]


def test_a_barred_token_is_never_drawn_and_the_only_one_left_always() -> None:
    logits = torch.full((140,), float("-inf"))
    logits[[3, 130]] = torch.tensor([-100.0, -100.7])
    uniform = torch.tensor([0.0, 0.999], dtype=torch.float64)
    for filters in ({}, {"top_p": 0.999}, {"min_p": 0.1}, {"top_k": 70}):
        assert draw(logits, uniform, **filters) == [3, 130]
    logits[3] = float("-inf")
    for filters in ({}, {"top_p": 0.3}, {"min_p": 1.0}, {"top_k": 70}, {"temperature": 0.0}):
        assert draw(logits, uniform, **filters) == [130, 130]


def test_rows_that_overflowed_end_in_the_vocabulary_and_leave_their_neighbours_alone() -> None:
    vocab = 100
    rows = torch.randn(6, vocab)
    rows[1] = float("nan")
    rows[2] = float("-inf")
    rows[3, 40] = float("inf")
    rows[4, ::2] = float("nan")
    uniform = torch.rand(6, dtype=torch.float64)
    for filters in ({"temperature": 0.0}, {}, {"top_p": 0.9}, {"top_k": 3, "min_p": 0.1}):
        inputs = (*parameters(6, vocab, **filters), uniform)
        together = sample_triton(rows, *inputs)
        assert ((together >= 0) & (together < vocab)).all()
        assert together[3] == 40
        assert together[4] % 2 == 1
        for row in (0, 5):
            alone = sample_triton(rows[row : row + 1], *(part[row : row + 1] for part in inputs))
            assert together[row] == alone[0] == sample_reference(rows, *inputs)[row]


def test_a_batch_of_requests_draws_the_same_tokens_as_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(9, 100)
    wishes = [
        {"temperature": 0.0},
        {},
        {"top_k": 5},
        {"top_k": 200, "top_p": 0.9, "temperature": 1.3},
        {"min_p": 0.05},
        {"temperature": 0.0, "logit_bias": ((70, 100.0),)},
        {"top_p": 0.5, "repetition_penalty": 1.2, "presence_penalty": 1.5},
        {"min_tokens": 3, "stop_token_ids": frozenset({1, 2}), "top_p": 0.7, "min_p": 0.01},
        {"temperature": 0.7},
    ]
    sampling_rows = [
        SamplingRow(i, SamplingParams(max_tokens=9, seed=2**63 + i, **wish), [1, 2, 3, 3], 2, [])
        for i, wish in enumerate(wishes)
    ]
    masks = ([2, 8], torch.randint(-(2**31), 2**31, (2, 4), dtype=torch.int32))

    def drawn(rows: int, given: tuple[list[int], torch.Tensor] | None = None) -> list[int]:
        tokens: list[int] = sampler.Sampler().sample(logits[:rows], sampling_rows[:rows], given).tolist()
        return tokens

    expected = [drawn(9), drawn(9, masks)]
    for module in (sampler, logit_editor, sample):
        monkeypatch.setattr(module, "on_triton", lambda x: True)
    assert [drawn(9), drawn(9, masks)] == expected
    assert drawn(1) == expected[0][:1]
    assert expected[0][5] == 70
