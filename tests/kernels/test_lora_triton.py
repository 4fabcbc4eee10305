from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels.lora import BLOCK, Bank, lora_reference, lora_triton
from tests.kernels.triton_cases import assert_close, bfloat16_products, poisoned
from tests.sampling import diagonal

__all__ = ["bfloat16_products", "poisoned"]

pytestmark = pytest.mark.usefixtures("bfloat16_products")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def make(wide: int, high: int, ranks: list[int], dtype: torch.dtype = torch.float32) -> Bank:
    """One adapter a place, but none where the rank is 0. What is not an adapter's is NaN."""
    most = max(ranks)
    bank = Bank.empty(len(ranks), most, wide, high, torch.device("cpu"), dtype)
    bank.down.fill_(torch.nan)
    bank.up.fill_(torch.nan)
    for place, rank in enumerate(ranks):
        if rank:
            bank.put(place, torch.randn(rank, wide) / wide**0.5, torch.randn(high, rank) / rank**0.5 / 4)
    return bank


def formula(y: Tensor, x: Tensor, index: Tensor, bank: Bank) -> Tensor:
    out = y.double()
    for t, place in enumerate(index.tolist()):
        if place >= 0:
            rank = int(bank.ranks[place])
            down, up = bank.down[place, :rank].double(), bank.up[place, :rank].double()
            out[t] += (down @ x[t].double()) @ up
    return out


def check(x: Tensor, index: Tensor, bank: Bank) -> Tensor:
    y = torch.randn(len(x), bank.up.shape[2]).to(x.dtype)
    before = y.clone()
    lora_triton(y, x, index, bank)
    assert_close(y, formula(before, x, index, bank))
    assert torch.equal(y[index < 0], before[index < 0])
    return y - before


@pytest.mark.parametrize(
    ("tokens", "wide", "high", "ranks", "dtype"),
    diagonal(
        [
            (1, 64, 48, [8]),
            (3, 40, 30, [1, 0, 33]),
            (31, 16, BLOCK, [8, 1, 16]),
            (33, 513, BLOCK + 1, [16, 65, 3]),
        ],
        DTYPES,
    ),
)
def test_equals_the_formula(tokens: int, wide: int, high: int, ranks: list[int], dtype: torch.dtype) -> None:
    index = torch.randint(-1, len(ranks), (tokens,), dtype=torch.int32)
    index[0] = 0
    check(torch.randn(tokens, wide).to(dtype), index, make(wide, high, ranks, dtype))


@pytest.mark.parametrize("index", [[-1] * 5, [0] * 5, [2, -1, 2, 0, 1], [1, 1, 1, 1, -1]])
def test_whoever_owns_the_rows(index: list[int]) -> None:
    check(torch.randn(5, 24), torch.tensor(index, dtype=torch.int32), make(24, 40, [4, 2, 9]))


def test_an_adapter_that_this_layer_has_not_changes_nothing() -> None:
    bank = make(24, 40, [4, 2])
    bank.clear(1)
    change = check(torch.randn(4, 24), torch.tensor([1, 0, 1, -1], dtype=torch.int32), bank)
    assert change[[0, 2, 3]].abs().max() == 0
    assert change[1].abs().min() > 0


def test_of_merged_layers_each_output_reads_its_own_ranks() -> None:
    """Block-diagonal: other blocks' are zero, and are not looked at."""
    bank = Bank.empty(2, 3 * 5, 32, 3 * BLOCK, torch.device("cpu"), torch.float32)
    ups = [torch.randn(BLOCK, 5), torch.randn(BLOCK, 2), torch.randn(BLOCK, 0)]
    bank.put(1, torch.randn(7, 32), torch.block_diag(*ups))
    assert bank.spans[1].tolist() == [[0, 5], [5, 7], [0, 0]]
    index = torch.tensor([1, -1, 1], dtype=torch.int32)
    x = torch.randn(3, 32)
    change = check(x, index, bank)
    assert change[:, 2 * BLOCK :].abs().max() == 0
    bank.up[1, 5:, :BLOCK] = torch.nan
    bank.up[1, :5, BLOCK:] = torch.nan
    y = torch.zeros(3, 3 * BLOCK)
    lora_triton(y, x, index, bank)
    assert_close(y[0, :BLOCK], (x[0] @ bank.down[1, :5].T @ bank.up[1, :5, :BLOCK]).double())
    assert not y.isnan().any()


@pytest.mark.usefixtures("products_row_by_row")
def test_a_row_is_the_same_to_the_bit_whoever_shares_the_step() -> None:
    bank = make(700, 40, [4, 12, 20])
    x, index = torch.randn(70, 700), torch.randint(-1, 3, (70,), dtype=torch.int32)
    base = torch.randn(70, 40)
    whole = base.clone()
    lora_triton(whole, x, index, bank)
    for rows in (slice(0, 1), slice(30, 34), slice(7, 60)):
        y = base[rows].clone()
        lora_triton(y, x[rows], index[rows], bank)
        assert torch.equal(y, whole[rows])


def test_many_rows_take_one_place_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same bits as all places side by side."""
    bank = make(64, 40, [4, 12, 20])
    x, index = torch.randn(40, 64), torch.randint(-1, 3, (40,), dtype=torch.int32)
    beside = torch.zeros(40, 40)
    lora_triton(beside, x, index, bank)
    monkeypatch.setattr("kernels.lora._PROGRAMS", 1)
    after = torch.zeros(40, 40)
    lora_triton(after, x, index, bank)
    assert torch.equal(after, beside)
    assert after.abs().max() > 0


def test_a_place_is_taken_by_another() -> None:
    bank = make(32, 24, [9, 9])
    bank.clear(0)
    bank.put(0, torch.randn(3, 32), torch.randn(24, 3))
    check(torch.randn(4, 32), torch.tensor([0, 1, -1, 0], dtype=torch.int32), bank)


def test_rows_may_lie_apart_and_may_be_none() -> None:
    bank = make(16, 24, [4])
    x, y = torch.randn(5, 32), torch.zeros(5, 48)
    index = torch.zeros(5, dtype=torch.int32)
    lora_triton(y[:, :24], x[:, :16], index, bank)
    assert_close(y[:, :24], formula(torch.zeros(5, 24), x[:, :16], index, bank))
    assert y[:, 24:].abs().max() == 0
    lora_triton(y[:0, :24], x[:0, :16], index[:0], bank)


def test_the_reference_says_the_same() -> None:
    bank = make(40, 30, [4, 0, 9])
    x, index = torch.randn(12, 40), torch.randint(-1, 3, (12,), dtype=torch.int32)
    y = torch.randn(12, 30)
    expected = formula(y, x, index, bank)
    lora_reference(y, x, index, bank)
    assert_close(y, expected)
