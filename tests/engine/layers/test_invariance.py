from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from engine.errors import StartupError
from engine.layers.invariance import cancelling, filled, least_rows
from engine.layers.linear import Linear
from engine.layers.quantized import Int4Linear, Int8Linear
from engine.weights.quantize import to_int4, to_int8

SHAPES = [(64, 64), (8, 64), (72, 85), (320, 256), (64, 3072), (1024, 3072)]
"""The last two are those of which a single row's sum is cut in bfloat16."""


@pytest.fixture(autouse=True)
def as_many_threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_rows_bits_do_not_depend_on_how_many_there_are(
    shape: tuple[int, int], threads: int, dtype: torch.dtype
) -> None:
    torch.set_num_threads(threads)
    x, weight = (t.to(dtype) for t in cancelling(80, *shape))
    layer = Linear(weight, torch.ones(shape[0], dtype=dtype).mul_(1e-6), invariant=True)
    whole = layer(x)
    assert whole.abs().max() > 0
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


@pytest.mark.parametrize(("few", "least"), [(0, 1), (1, 2), (3, 4), (5, 8), (9, 16)])
def test_few_rows_are_filled_up_to_as_many_as_it_takes(few: int, least: int) -> None:
    def make(weight: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: x.sum(1, keepdim=True) * 0 + (1.0 if len(x) > few else 2.0)

    assert least_rows(make, 8, 16, torch.float32) == least
    x = torch.zeros(1, 16)
    assert filled(make(x), x, least).tolist() == [[1.0]]


def test_what_cannot_be_kept_is_refused() -> None:
    def make(weight: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.full((len(x), 1), float(len(x)))

    with pytest.raises(StartupError, match=r"--deterministic cannot be kept.* 16 inputs"):
        least_rows(make, 8, 16, torch.float32)
