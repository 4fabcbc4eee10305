"""Products in C whose sums run in one order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from kernels.native import dense, library, tiled
from kernels.native.dense import DenseWeight, multiplies

DTYPES = (torch.float32, torch.bfloat16)
SHAPES = [(1, 1), (16, 7), (17, 64), (64, 63), (65, 300), (200, 777)]
"""[out, in], around whole vectors, tiles and runs of words."""

pytestmark = pytest.mark.skipif(not multiplies(torch.float32), reason="no C compiler")


@pytest.fixture(autouse=True)
def same_numbers_and_threads() -> Iterator[None]:
    torch.manual_seed(0)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def check(found: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Within what sums in float32, one product after another, lose at most, and half a last place of the result."""
    x, weight = x.double(), weight.double()
    wanted = x @ weight.T
    lost = (x.shape[1] + 1) * 2**-24 * (x.abs() @ weight.abs().T)
    if bias is not None:
        wanted = wanted + bias.double()
        lost += 2**-24 * wanted.abs()
    lost += torch.finfo(found.dtype).eps / 2 * (wanted.abs() + lost)
    assert ((found.double() - wanted).abs() <= lost).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("out", "inputs"), SHAPES)
def test_the_product(out: int, inputs: int, dtype: torch.dtype) -> None:
    plain, bias = torch.randn(out, inputs).to(dtype), torch.randn(out).to(dtype)
    for b in (None, bias):
        weight = DenseWeight(plain, b)
        for rows in (1, 2, 5, 6, 7, 100):
            x = torch.randn(rows, inputs).to(dtype)
            found = weight(x)
            assert found.dtype == dtype and found.shape == (rows, out)
            check(found, x, plain, b)
    assert weight(torch.empty(0, inputs, dtype=dtype)).shape == (0, out)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(300, 777), (16, 2048), (1100, 64)], ids=str)
def test_a_row_is_the_same_to_the_bit_among_any_rows_and_on_any_threads(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    weight = DenseWeight(torch.randn(shape).to(dtype))
    x = torch.randn(300, shape[1]).to(dtype)
    torch.set_num_threads(1)
    whole = weight(x)
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        for first, last in ((0, 1), (1, 3), (5, 8), (2, 6), (7, 20), (95, 97), (129, 300), (0, 300)):
            assert torch.equal(weight(x[first:last]), whole[first:last]), (threads, first, last)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_lie_apart_or_across(dtype: torch.dtype) -> None:
    plain = torch.randn(40, 64).to(dtype)
    weight, wide = DenseWeight(plain), torch.randn(6, 201).to(dtype)
    for x in (wide[:, 100:164], wide[:, 3:67], wide[::2, :64], torch.randn(64, 6).to(dtype).T):
        check(weight(x), x, plain)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_no_number_spoils_its_own_row_alone(dtype: torch.dtype) -> None:
    weight, x = DenseWeight(torch.randn(40, 64).to(dtype)), torch.randn(6, 64).to(dtype)
    whole = weight(x)
    x[2, 5] = torch.nan
    found = weight(x)
    assert found[2].isnan().all()
    assert torch.equal(found[[0, 1, 3, 4, 5]], whole[[0, 1, 3, 4, 5]])


def test_bfloat16_rounds_to_nearest() -> None:
    """Half a last place up, down to even, and neither past the largest number nor off infinity."""
    x = torch.tensor([[1.0, 2**-9], [1.0 + 2**-7, 2**-9 * 1.5], [3e38, 3e38], [-3e38, -3e38]]).bfloat16()
    found = DenseWeight(torch.ones(1, 2).bfloat16())(x)[:, 0]
    assert torch.equal(found, x.float().sum(1).bfloat16())


@pytest.mark.parametrize("flag", ["-mno-avx512bf16", "-mno-avx512f", "-mno-avx"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_processors_of_other_kinds(flag: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_FLAGS", (*library._FLAGS, flag))
    monkeypatch.setattr(tiled, "load", library.load.__wrapped__)
    found = tiled.tiled_library.__wrapped__("dense")
    if found is None:
        pytest.skip(f"the compiler knows no {flag}")
    monkeypatch.setattr(dense, "tiled_library", lambda name: found)
    test_the_product(65, 300, dtype)
    test_a_row_is_the_same_to_the_bit_among_any_rows_and_on_any_threads((300, 777), dtype)
