from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.layers.quantized_gpu import Fp8Linear, GpuInt4Linear, GpuInt8Linear, takes
from engine.weights.quantize import ChannelWeight, Int4Weight, to_fp8, to_int4, to_int8
from kernels import launch
from tests.kernels.triton_cases import assert_close

Product = Callable[[Tensor], Tensor]


@pytest.fixture(params=["triton", "reference"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways are taken, whatever the machine."""
    monkeypatch.setattr(launch, "path", lambda: request.param)
    return str(request.param)


def of_channels(weight: ChannelWeight) -> Tensor:
    return weight.codes.double() * weight.scale.double()[:, None]


@pytest.mark.parametrize("rows", [1, 20, 70])
@pytest.mark.parametrize("invariant", [False, True])
def test_integers_equal_the_product_with_their_own_weight(path: str, rows: int, invariant: bool) -> None:
    plain, bias, x = torch.randn(70, 96) / 10, torch.randn(70), torch.randn(rows, 96)
    eight, four = to_int8(plain), to_int4(plain, 32)
    int8 = GpuInt8Linear(eight, bias, invariant=invariant)
    int4 = GpuInt4Linear(four, bias, invariant=invariant)
    assert_close(int8(x), x.double() @ of_channels(eight).t() + bias.double())
    assert_close(int4(x), x.double() @ four.weight().double().t() + bias.double())
    assert (int8.in_features, int8.out_features) == (int4.in_features, int4.out_features) == (96, 70)


@pytest.mark.parametrize("rows", [1, 20])
def test_floats_equal_the_product_with_their_own_weight(path: str, rows: int) -> None:
    plain, bias, x = torch.randn(64, 96) / 10, torch.randn(64), torch.randn(rows, 96)
    weight = to_fp8(plain)
    assert_close(Fp8Linear(weight, bias)(x), x.double() @ of_channels(weight).t() + bias.double())


def test_inputs_in_the_order_of_their_groups(path: str) -> None:
    weight = to_int4(torch.randn(64, 128), 64)
    reordered = Int4Weight(weight.codes, weight.scale, weight.offset, torch.randperm(128))
    x = torch.randn(3, 128)
    assert_close(GpuInt4Linear(reordered)(x), x.double() @ reordered.weight().double().t())


@pytest.mark.parametrize("rows", [1, 17, 70])
def test_with_invariant_a_row_is_the_same_among_any_rows(path: str, rows: int) -> None:
    if path == "reference":
        pytest.skip("there the order of a sum is the library's")
    plain, x = torch.randn(64, 256), torch.randn(70, 256)
    products: list[Product] = [
        GpuInt8Linear(to_int8(plain), invariant=True),
        GpuInt4Linear(to_int4(plain, 64), invariant=True),
        Fp8Linear(to_fp8(plain), invariant=True),
    ]
    for product in products:
        assert torch.equal(product(x[:rows])[0], product(x[:1])[0])


def test_the_packed_weight_is_half_a_byte_each_and_four_bytes_a_group() -> None:
    weight = to_int4(torch.randn(128, 512), 128)
    assert GpuInt4Linear(weight).nbytes == 128 * 512 // 2 + 128 * 4 * 4


def test_on_a_processor_it_is_asked_for_only_with_the_interpreter(path: str) -> None:
    assert takes(torch.empty(1)) == (path == "triton")
