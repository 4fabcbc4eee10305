from __future__ import annotations

import ctypes
import mmap
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from engine.layers.quantized import Int8Linear
from engine.weights.quantize import Int4Weight, to_int4, to_int6, to_int8
from kernels.native import linear
from kernels.native.linear import Kind, PackedTensors, PackedWeight, joined, pack_int4, pack_int6, pack_int8

pytestmark = pytest.mark.skipif(not linear.available(), reason="no AVX-512 VNNI or no compiler")

SHAPES = [(1, 32), (31, 96), (33, 64), (100, 384)]
"""[out, in], around whole tiles of 32 outputs."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
STEPS = 126 * 256
"""Between zero and a group's largest activation."""


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def made(kind: Kind, out: int, inputs: int, bias: Tensor | None = None) -> tuple[PackedWeight, Tensor]:
    """And the same weight in float64 [out, in]."""
    weight = torch.randn(out, inputs)
    if kind in (Kind.INT8, Kind.W8A8):
        eight = to_int8(weight)
        packed = pack_int8(eight.codes, eight.scale, bias, rounds_inputs=kind == Kind.W8A8)
        assert packed.kind == kind
        return packed, eight.codes.double() * eight.scale.double()[:, None]
    if kind == Kind.INT6:
        six = to_int6(weight)
        return pack_int6(six.codes, six.scale, bias), six.weight().double()
    four = to_int4(weight, 32)
    if kind == Kind.INT4:
        # No scales of 8 bits, as in files.
        scale, offset = (t.bfloat16().float() for t in (four.scale * 1.013, four.offset + 0.01))
        four = Int4Weight(four.codes, scale, offset)
    packed = pack_int4(four.codes, four.scale, four.offset, bias)
    assert packed.kind == kind
    return packed, four.weight().double()


def check(found: Tensor, x: Tensor, weight: PackedWeight, plain: Tensor, bias: Tensor | None = None) -> None:
    """Within what can be lost at most: half a step of each activation, what sums in float32 lose, and half a last place
    of the result."""
    x = x.double()
    group = weight._struct.group
    missing = (0, -x.shape[1] % group)
    rows, outputs = (functional.pad(t, missing).unflatten(1, (-1, group)).abs() for t in (x, plain.double()))
    # 1e-30: of what is smaller, all is lost.
    steps = rows.amax(2).clamp_min(1e-30) / (127 if weight.kind == Kind.W8A8 else STEPS)
    lost = steps @ outputs.sum(2).T / 2 + (x.shape[1] + 4) * 2**-24 * (x.abs() @ plain.abs().T)
    wanted = x @ plain.T
    if bias is not None:
        wanted = wanted + bias.double()
        lost += 2**-24 * bias.double().abs()
    lost += (
        torch.finfo(found.dtype).eps / 2 * (wanted.abs() + lost) + torch.finfo(found.dtype).smallest_normal
    )
    excess = ((found.double() - wanted).abs() / lost).max()
    assert excess <= 1, f"{excess:.3f} times what may be lost"


def error(found: Tensor, x: Tensor, plain: Tensor) -> float:
    """As a share of how large products of such rows and outputs are, so that one that happens to be near 0 is no
    fault."""
    x = x.double()
    size = x.norm(dim=1)[:, None] * plain.norm(dim=1) / x.shape[1] ** 0.5
    return float((found.double() - x @ plain.T).norm() / size.norm())


@pytest.mark.parametrize("kind", [Kind.INT8, Kind.INT6, Kind.INT4_SMALL])
def test_parts_joined_are_the_whole(kind: Kind) -> None:
    def packed(weight: Tensor) -> PackedTensors:
        if kind == Kind.INT8:
            eight = to_int8(weight)
            return pack_int8(eight.codes, eight.scale, None).packed
        if kind == Kind.INT6:
            six = to_int6(weight)
            return pack_int6(six.codes, six.scale, None).packed
        four = to_int4(weight, 32)
        return pack_int4(four.codes, four.scale, four.offset, None).packed

    weight = torch.randn(100, 96)
    whole, parts = packed(weight), [packed(part) for part in weight.split(64)]
    found = joined(parts, 100)
    assert found[:3] == whole[:3]
    assert all(map(torch.equal, found.tensors, whole.tensors))
    with pytest.raises(ValueError, match="64 outputs in place of 100"):
        joined(parts[:1], 100)
    with pytest.raises(ValueError, match="different forms"):
        joined(reversed(parts), 100)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(("out", "inputs"), SHAPES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_product_with_its_own_weight(kind: Kind, out: int, inputs: int, dtype: torch.dtype) -> None:
    bias = torch.randn(out)
    weight, plain = made(kind, out, inputs, bias)
    for rows in (1, 2, 3, 4, 5, 6, 7, 9):
        x = torch.randn(rows, inputs).to(dtype)
        found = weight(x)
        assert found.dtype == dtype and found.shape == (rows, out)
        check(found, x, weight, plain, bias)


@pytest.mark.parametrize("inputs", [1, 7, 33, 63, 65, 1000])
def test_inputs_of_any_number(inputs: int) -> None:
    weight, plain = made(Kind.INT8, 40, inputs)
    x = torch.randn(3, inputs)
    check(weight(x), x, weight, plain)


def test_no_rows() -> None:
    weight, _ = made(Kind.INT8, 40, 64)
    assert weight(torch.empty(0, 64)).shape == (0, 40)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_is_the_same_to_the_bit_among_any_rows(kind: Kind, threads: int) -> None:
    weight, _ = made(kind, 70, 2048)
    # More rows than stay in the cache.
    x = torch.randn(300, 2048).bfloat16()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = weight(x)
        # Blocks of every size, alone, in twos and in threes.
        for first, last in (*((5, 5 + rows) for rows in range(1, 17)), (129, 300), (299, 300)):
            assert torch.equal(weight(x[first:last]), whole[first:last])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kind", Kind)
def test_rows_that_lie_apart_or_across(kind: Kind) -> None:
    weight, _ = made(kind, 40, 64)
    wide = torch.randn(6, 200)
    assert torch.equal(weight(wide[:, 100:164]), weight(wide[:, 100:164].contiguous()))
    across = torch.randn(64, 6).t()
    assert torch.equal(weight(across), weight(across.contiguous()))


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_stays_in_its_row(kind: Kind, value: float) -> None:
    weight, _ = made(kind, 40, 96)
    x = torch.randn(6, 96)
    whole = weight(x)
    x[2, 50] = value
    found = weight(x)
    assert not found[2].isfinite().any()
    assert torch.equal(found[[0, 1, 3, 4, 5]], whole[[0, 1, 3, 4, 5]])


@pytest.mark.parametrize("kind", Kind)
def test_zeros_and_the_smallest_and_largest_numbers(kind: Kind) -> None:
    weight, plain = made(kind, 40, 64)
    assert torch.equal(weight(torch.zeros(2, 64)), torch.zeros(2, 40))
    assert weight(torch.full((2, 64), 1e-42)).abs().max() < 1e-30
    x = torch.randn(2, 64) * 1e33
    assert error(weight(x), x, plain) < (1e-2 if kind == Kind.W8A8 else 1e-4)
    assert weight(torch.full((1, 64), 3e38)).shape == (1, 40)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind != Kind.W8A8])
def test_a_large_activation_costs_its_own_group_alone(kind: Kind) -> None:
    weight, plain = made(kind, 40, 256)
    x = torch.randn(1, 256)
    x[0, 10] = 1e4
    small = x.clone()
    small[0, :128] = 0
    x[0, :128] -= x[0, :128] * (torch.arange(128) != 10)
    found = weight(x).double() - 1e4 * plain.T[10]
    assert error(found, small, plain) < 1e-2


def test_inputs_in_8_bits_are_those_of_the_other_processors() -> None:
    """Sums of integers are exact, so that only the factors round."""
    codes, x = to_int8(torch.randn(40, 1000)), torch.randn(5, 1000)
    found = pack_int8(codes.codes, codes.scale, None, rounds_inputs=True)(x)
    other = Int8Linear(replace(codes, rounds_inputs=True), native=False)(x)
    torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))
    assert not torch.equal(found, pack_int8(codes.codes, codes.scale, None)(x))


@pytest.mark.parametrize("kind", Kind)
def test_codes_widened_to_bfloat16(kind: Kind) -> None:
    weight, plain = made(kind, 100, 96)
    into = torch.full((96, weight.columns), float("nan")).bfloat16()
    weight.widen(0, into)
    assert torch.equal(into[:, :100], plain.T.float().bfloat16())
    piece = torch.empty(96, 64).bfloat16()
    weight.widen(32, piece)
    assert torch.equal(piece, into[:, 32:96])


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize(("out", "inputs"), [(1, 32), (33, 96), (95, 160)])
def test_nothing_past_an_end_is_read_or_written(kind: Kind, out: int, inputs: int) -> None:
    """All lies right before memory whose touch ends the process."""
    weight, plain = made(kind, out, inputs, torch.randn(out))
    tensors = [*weight.packed.tensors, weight._bias]
    kept = [guarded(tensor) for tensor in tensors if tensor is not None]
    for field, tensor in zip(("codes", "scales", "factors", "bias"), kept, strict=True):
        setattr(weight._struct, field, tensor.data_ptr())
    for dtype, number in linear._DTYPES.items():
        for rows in (1, 3, 5):
            x, into = (
                guarded(torch.randn(rows, inputs).to(dtype)),
                guarded(torch.empty(rows, out, dtype=dtype)),
            )
            weight._library.product(
                linear._Product(weight._address, x.data_ptr(), into.data_ptr(), inputs, rows, number)
            )
            assert weight._bias is not None
            check(into, x, weight, plain, weight._bias)
    weight.widen(0, guarded(torch.empty(inputs, weight.columns).bfloat16()))


_kept: list[mmap.mmap] = []


def guarded(tensor: Tensor) -> Tensor:
    """A copy that ends where a page begins that must not be touched."""
    if not tensor.numel():
        return tensor
    page = mmap.PAGESIZE
    size = -(-tensor.nbytes // page) * page
    memory = mmap.mmap(-1, size + page)
    _kept.append(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + size), page, 0) == 0
    whole = torch.frombuffer(memory, dtype=torch.uint8, count=size)
    copy = whole[size - tensor.nbytes :].view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor)
