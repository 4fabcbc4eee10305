from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.moe import mixture_triton
from tests.kernels.triton_cases import assert_close, bfloat16_products, poisoned
from tests.sampling import diagonal

__all__ = ["bfloat16_products", "poisoned"]

pytestmark = pytest.mark.usefixtures("bfloat16_products")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def make(
    tokens: int, count: int, hidden: int, width: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, scores, gate_up, down"""
    return (
        torch.randn(tokens, hidden).to(dtype),
        torch.randn(tokens, count).to(dtype),
        (torch.randn(count, 2 * width, hidden) / hidden**0.5).to(dtype),
        (torch.randn(count, hidden, width) / width**0.5 / 2).to(dtype),
    )


def formula(
    x: Tensor, scores: Tensor, gate_up: Tensor, down: Tensor, top: int, normalise: bool, activation: str
) -> Tensor:
    """In float64, token by token."""
    out = torch.zeros(x.shape, dtype=torch.float64)
    chances = torch.softmax(scores.double(), -1)
    for t in range(len(x)):
        # The lowest number of equally likely ones.
        best = sorted(range(scores.shape[1]), key=lambda e: (-chances[t, e].item(), e))[:top]
        whole = chances[t, best].sum() if normalise else 1
        for e in best:
            gate, up = (gate_up[e].double() @ x[t].double()).chunk(2)
            if activation == "swiglu":
                inner = torch.nn.functional.silu(gate) * up
            else:
                inner = torch.nn.functional.gelu(gate, approximate="tanh") * up
            out[t] += chances[t, e] / whole * (down[e].double() @ inner)
    return out


@pytest.mark.parametrize(
    ("tokens", "count", "top", "hidden", "width", "normalise", "activation", "dtype"),
    diagonal(
        [
            (1, 8, 2, 64, 48, True, "swiglu"),
            (1, 1, 1, 16, 16, False, "swiglu"),
            (5, 5, 1, 40, 24, False, "geglu"),
            (17, 4, 4, 33, 7, True, "swiglu"),
            (31, 8, 2, 32, 16, True, "geglu"),
            (33, 24, 8, 32, 16, True, "swiglu"),
        ],
        DTYPES,
    ),
)
def test_equals_the_formula(
    tokens: int,
    count: int,
    top: int,
    hidden: int,
    width: int,
    normalise: bool,
    activation: str,
    dtype: torch.dtype,
) -> None:
    case = make(tokens, count, hidden, width, dtype)
    assert_close(
        mixture_triton(*case, top, normalise, activation), formula(*case, top, normalise, activation)
    )


def test_many_tokens_take_larger_tiles() -> None:
    """As float16 has them: 64 rows, and 128."""
    for tokens, count in ((70, 2), (140, 1)):
        case = make(tokens, count, 24, 16, torch.float16)
        assert_close(mixture_triton(*case, 1, False), formula(*case, 1, False, "swiglu"))


@pytest.mark.parametrize("tokens", [15, 16, 17, 32, 65])
def test_all_tokens_may_want_one_expert(tokens: int) -> None:
    x, scores, gate_up, down = make(tokens, 4, 16, 16)
    scores[:, 2] = 20
    found = mixture_triton(x, scores, gate_up, down, 1, True)
    assert_close(found, formula(x, scores, gate_up, down, 1, True, "swiglu"))


def test_experts_that_nobody_wants_are_not_read() -> None:
    x, scores, gate_up, down = make(40, 6, 16, 16)
    scores[:, [0, 3, 5]] = -9
    expected = formula(x, scores, gate_up, down, 2, True, "swiglu")
    gate_up[[0, 3, 5]] = torch.nan
    down[[0, 3, 5]] = torch.nan
    assert_close(mixture_triton(x, scores, gate_up, down, 2, True), expected)


def test_of_equals_the_first_are_taken() -> None:
    x, scores, gate_up, down = make(7, 8, 16, 16)
    scores = torch.randint(3, scores.shape).float()
    found = mixture_triton(x, scores, gate_up, down, 3, True)
    assert_close(found, formula(x, scores, gate_up, down, 3, True, "swiglu"))


@pytest.mark.usefixtures("products_row_by_row")
def test_a_token_is_the_same_to_the_bit_whoever_shares_the_step() -> None:
    x, scores, gate_up, down = make(67, 8, 48, 32)
    whole = mixture_triton(x, scores, gate_up, down, 2, True)
    for rows in (slice(0, 1), slice(40, 41), slice(7, 40)):
        assert torch.equal(mixture_triton(x[rows], scores[rows], gate_up, down, 2, True), whole[rows])


def test_a_token_without_numbers_harms_no_other() -> None:
    x, scores, gate_up, down = make(4, 8, 16, 16)
    expected = mixture_triton(x, scores, gate_up, down, 2, True)
    scores[1] = torch.nan
    with pytest.warns(RuntimeWarning):
        found = mixture_triton(x, scores, gate_up, down, 2, True)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2, 3]], expected[[0, 2, 3]])


def test_rows_may_lie_apart_and_may_be_none() -> None:
    x, scores, gate_up, down = make(6, 4, 16, 16)
    expected = mixture_triton(x, scores, gate_up, down, 2, True)
    wide, padded = torch.randn(6, 32), torch.randn(6, 8)
    wide[:, :16], padded[:, :4] = x, scores
    assert torch.equal(mixture_triton(wide[:, :16], padded[:, :4], gate_up, down, 2, True), expected)
    assert mixture_triton(x[:0], scores[:0], gate_up, down, 2, True).shape == (0, 16)
