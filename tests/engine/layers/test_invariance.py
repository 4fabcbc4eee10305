from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from engine.layers.invariance import ALONE, cancelling, padded, row_multiple
from engine.layers.linear import Linear
from engine.layers.quantized import Int4Linear, Int8Linear
from engine.weights.quantize import to_int4, to_int8
from kernels.native.dense import multiplies
from tests.sampling import diagonal

SHAPES = [(64, 64), (8, 64), (72, 85), (64, 256), (704, 256), (64, 1536), (1024, 3072)]
"""Of these libraries have been seen to cut a single row's sum, or a few rows', otherwise than many rows'."""
NATIVE = [pytest.param(True, id="C"), pytest.param(False, id="torch")]


@pytest.fixture(autouse=True)
def as_many_threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("shape", "threads", "dtype", "native"),
    diagonal([(shape,) for shape in SHAPES], [1, 2], [torch.float32, torch.bfloat16, torch.float16], NATIVE),
)
def test_a_rows_bits_do_not_depend_on_how_many_there_are(
    shape: tuple[int, int], threads: int, dtype: torch.dtype, native: bool
) -> None:
    if native and not multiplies(dtype):
        pytest.skip(f"no C for {dtype}, or no compiler")
    torch.set_num_threads(threads)
    x, weight = (t.to(dtype) for t in cancelling(80, *shape))
    layer = Linear(weight, torch.ones(shape[0], dtype=dtype).mul_(1e-6), invariant=True, native=native)
    whole = layer(x)
    assert whole.abs().max() > 0
    for rows in (1, 2, 3, 5, 7, 11, 16, 19, 50, 79):
        assert torch.equal(layer(x[1 : 1 + rows]), whole[1 : 1 + rows]), rows


@pytest.mark.parametrize("native", NATIVE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_in_float32_without_being_asked(shape: tuple[int, int], native: bool) -> None:
    if native and not multiplies(torch.float32):
        pytest.skip("no compiler")
    x, weight = cancelling(80, *shape)
    layer = Linear(weight, native=native)
    whole = layer(x)
    for rows in (1, 2, 3, 5, 7, 11, 16, 19, 50, 79):
        assert torch.equal(layer(x[1 : 1 + rows]), whole[1 : 1 + rows]), rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_nor_do_those_of_quantized_layers(kind: str, threads: int, dtype: torch.dtype) -> None:
    torch.set_num_threads(threads)
    x, weight = cancelling(80, 192, 512)
    layer: Int8Linear | Int4Linear
    if kind == "int8":
        layer = Int8Linear(to_int8(weight), invariant=True)
    else:
        layer = Int4Linear(to_int4(weight, 32), invariant=True)
    x = x.to(dtype)
    whole = layer(x)
    for rows in (1, 2, 3, 4, 7, 16, 47, 48, 64, 65, 79):
        assert torch.equal(layer(x[1 : 1 + rows]), whole[1 : 1 + rows]), rows


@pytest.mark.parametrize(("odd", "multiple"), [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16)])
def test_rows_are_filled_up_to_as_many_as_it_takes(odd: int, multiple: int) -> None:
    """Also where those left over of blocks are computed in another way."""

    def make(weight: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: x.sum(1, keepdim=True) * 0 + (2.0 if len(x) % odd else 1.0)

    assert row_multiple(make, 8, 16, torch.float32) == multiple
    for rows in (1, 17):
        x = torch.zeros(rows, 16)
        assert padded(make(x), x, multiple).tolist() == [[1.0]] * rows


def test_where_no_number_will_do_each_row_is_alone(caplog: pytest.LogCaptureFixture) -> None:
    seen = []

    def make(weight: Tensor) -> Callable[[Tensor], Tensor]:
        def product(x: Tensor) -> Tensor:
            seen.append(len(x))
            return torch.full((len(x), 1), float(len(x)))

        return product

    with caplog.at_level(logging.WARNING, "engine.layers"):
        assert row_multiple(make, 8, 16, torch.float32) == ALONE
    assert "16 inputs" in caplog.text and "each row is multiplied alone" in caplog.text
    seen.clear()
    x = torch.zeros(3, 16)
    assert padded(make(x), x, ALONE).tolist() == [[1.0]] * 3
    assert seen == [1, 1, 1]
    assert padded(make(x), x[:0], ALONE).shape == (0, 1)
