"""Attention in C over a packed cache, and storing there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from engine.kv_cache import KVCache, KVShape
from kernels.native import attention, library
from kernels.native.attention import (
    PagedSequences,
    packed_attention,
    packed_shapes,
    packed_store,
    packs,
    unpack,
)
from kernels.store_kv import store_kv_reference
from tests.kernels.paged import dense

CPU = torch.device("cpu")
NARROW = torch.bfloat16
TOLERANCES = {torch.bfloat16: 2**-8, torch.float32: 1e-5}
"""Half a last place of the result, and a weight's relative error of as much; of float32 what many sums may lose."""
needs_bfloat16 = pytest.mark.skipif(not packs(CPU, NARROW, 64, 16), reason="no C compiler, or no AVX-512")


@pytest.fixture(params=TOLERANCES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    """One that there is C for."""
    if not packs(CPU, request.param, 64, 16):
        pytest.skip("no C compiler, or for bfloat16 no AVX-512")
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def as_many_threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@dataclass
class World:
    """Sequences scattered over a cache that is no number wherever they have not written."""

    keys: Tensor
    values: Tensor
    tables: list[list[int]]
    numbers: list[tuple[Tensor, Tensor, Tensor]]
    """Of each sequence, all queries, keys and values."""

    @classmethod
    def of(
        cls,
        dtype: torch.dtype,
        lengths: list[int],
        kv_heads: int,
        group: int,
        head_dim: int,
        block_size: int = 16,
    ) -> World:
        counts = [-(-length // block_size) for length in lengths]
        order = torch.randperm(sum(counts) + 2).tolist()
        shapes = packed_shapes(len(order), kv_heads, block_size, head_dim, dtype)
        keys, values = (torch.full(shape, torch.nan, dtype=dtype) for shape in shapes)
        world = cls(keys, values, [], [])
        for length, count in zip(lengths, counts, strict=True):
            table = [order.pop() for _ in range(count)]
            # Queries are views of wider rows, as in a layer.
            wide = torch.randn(length, (group + 2) * kv_heads, head_dim).to(dtype)
            q, k, v = wide.split((group * kv_heads, kv_heads, kv_heads), 1)
            slots = [table[p // block_size] * block_size + p % block_size for p in range(length)]
            packed_store(k, v, keys, values, torch.tensor(slots, dtype=torch.int64))
            world.tables.append(table)
            world.numbers.append((q, k, v))
        return world

    def attend(
        self,
        pieces: list[tuple[int, int, int]],
        window: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> list[Tensor]:
        """(sequence, from, to) → the outputs of each piece's tokens."""
        width = max(len(table) for table in self.tables) + 1
        # Nothing is read there: a block of that number would be far outside.
        tables = [self.tables[s] + [1 << 40] * (width - len(self.tables[s])) for s, _, _ in pieces]
        counts = torch.tensor([0] + [last - first for _, first, last in pieces])
        sequences = PagedSequences(
            torch.tensor(tables), counts.cumsum(0), torch.tensor([last for _, _, last in pieces])
        )
        q = [self.numbers[s][0][first:last] for s, first, last in pieces]
        # One piece stays the view that it is.
        rows = q[0] if len(q) == 1 else torch.cat(q)
        out = packed_attention(rows, self.keys, self.values, sequences, 0.3, window, softcap, sinks)
        return list(out.split(counts[1:].tolist()))

    def check(
        self,
        pieces: list[tuple[int, int, int]],
        window: int | None,
        softcap: float | None,
        size: float = 1,
        sinks: Tensor | None = None,
    ) -> None:
        """``size``: how much larger than usual scores are, and so what rounding takes from them."""
        found = self.attend(pieces, window, softcap, sinks)
        for (s, first, last), out in zip(pieces, found, strict=True):
            q, k, v = self.numbers[s]
            expected = dense(q[first:last], k[:last], v[:last], 0.3, window, softcap, sinks)
            tolerance = TOLERANCES[q.dtype] * (size if q.dtype == torch.float32 else 1)
            torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("group", "head_dim", "block_size", "window", "softcap"),
    [
        (1, 64, 16, None, None),
        (4, 128, 16, None, None),
        (7, 80, 32, None, 5.0),
        (8, 96, 48, 40, None),
        (2, 256, 16, 5, 2.0),
        (1, 16, 16, 1, None),
        (3, 112, 16, 16, None),
        (50, 32, 16, 17, None),
    ],
)
def test_equals_dense_attention(
    dtype: torch.dtype, group: int, head_dim: int, block_size: int, window: int | None, softcap: float | None
) -> None:
    world = World.of(dtype, [1, 16, 17, 33, 90, 5], 2, group, head_dim, block_size)
    decodes = [(0, 0, 1), (1, 15, 16), (2, 16, 17), (3, 32, 33)]
    guesses, whole, ends, none = (4, 62, 67), (4, 0, 90), (4, 73, 90), (5, 5, 5)
    for pieces in (decodes, [guesses], [whole], [ends], [decodes[2], guesses, none, whole, none, decodes[0]]):
        world.check(pieces, window, softcap)


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (700, 3.0), (520, None)])
@pytest.mark.parametrize("threads", [1, 3])
def test_long_ones_are_joined_from_parts(
    dtype: torch.dtype, threads: int, window: int | None, softcap: float | None
) -> None:
    torch.set_num_threads(threads)
    world = World.of(dtype, [1540], 1, 4, 64)
    for first, last in [(1539, 1540), (1535, 1538), (1023, 1026), (511, 513)]:
        world.check([(0, first, last)], window, softcap)


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("threads", [1, 3])
def test_sinks_take_weight_from_what_is_seen(dtype: torch.dtype, threads: int, window: int | None) -> None:
    torch.set_num_threads(threads)
    world, sinks = World.of(dtype, [1540, 90, 1], 2, 3, 64), torch.tensor([-2.0, 0.5, 3, 300, -300, 1])
    pieces = [(0, 1537, 1540), (1, 0, 90), (2, 0, 1)]
    for some in (pieces, pieces[:1]):
        world.check(some, window, None, sinks=sinks)
        assert all(out[:, 3].abs().max() < 1e-30 for out in world.attend(some, window, sinks=sinks))


@pytest.mark.parametrize("window", [None, 100, 600])
@pytest.mark.parametrize(("kv_heads", "group"), [(1, 3), (2, 2), (1, 7)])
def test_a_token_is_the_same_to_the_bit_in_any_company(
    dtype: torch.dtype, kv_heads: int, group: int, window: int | None
) -> None:
    world = World.of(dtype, [1200, 300], kv_heads, group, 64, 32)
    torch.set_num_threads(1)
    (whole,) = world.attend([(0, 0, 1200)], window)
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        done = 0
        for count in (1, 63, 17, 16, 100, 315, 3, 497, 188):
            found, _ = world.attend([(0, done, done + count), (1, 200, 201)], window)
            assert torch.equal(found, whole[done : done + count])
            done += count
        assert done == 1200
        for position in (0, 1, 15, 16, 63, 64, 511, 512, 513, 800, 1023, 1024, 1199):
            (alone,) = world.attend([(0, position, position + 1)], window)
            assert torch.equal(alone[0], whole[position]), position
            pieces = [(1, 0, 300), (0, position, min(1200, position + 4)), (1, 7, 8)]
            assert torch.equal(world.attend(pieces, window)[1], whole[position : position + 4]), position


def test_weights_add_up_to_one(dtype: torch.dtype) -> None:
    """In bfloat16 to the bit, though each is rounded: the sum is of the rounded ones."""
    world = World.of(dtype, [700], 2, 2, 32)
    world.values.fill_(1)
    (out,) = world.attend([(0, 600, 700)])
    torch.testing.assert_close(out, torch.ones_like(out), rtol=0 if dtype == NARROW else 1e-5, atol=0)


def test_scores_that_overflow_exponents_do_not_overflow(dtype: torch.dtype) -> None:
    world = World.of(dtype, [130], 1, 2, 32)
    world.numbers[0][0].mul_(100)
    world.check([(0, 60, 130)], None, None, 100)
    (out,) = world.attend([(0, 60, 130)])
    assert out.isfinite().all()


def test_a_query_that_is_no_number_spoils_itself_alone(dtype: torch.dtype) -> None:
    world = World.of(dtype, [40], 1, 1, 32)
    (before,) = world.attend([(0, 30, 40)])
    world.numbers[0][0][33] = torch.nan
    (after,) = world.attend([(0, 30, 40)])
    assert after[3].isnan().all()
    assert torch.equal(after[:3], before[:3])
    assert torch.equal(after[4:], before[4:])


@needs_bfloat16
def test_processors_without_products_of_bfloat16_do_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_FLAGS", (*library._FLAGS, "-mno-avx512bf16"))
    monkeypatch.setattr(attention, "load", library.load.__wrapped__)
    functions = attention._functions.__wrapped__(NARROW)
    monkeypatch.setattr(attention, "_functions", lambda dtype: functions)
    world = World.of(NARROW, [90, 33], 2, 3, 80)
    world.check([(0, 20, 90), (1, 32, 33)], 40, 3.0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("tokens", "block_size"), [(1, 16), (5, 48), (90, 32)])
def test_stores_what_the_reference_stores(
    dtype: torch.dtype, tokens: int, block_size: int, threads: int
) -> None:
    torch.set_num_threads(threads)
    k, v = torch.randn(tokens, 6, 48).to(dtype).split(3, 1)
    v[0, 0, :4] = torch.tensor([torch.nan, -torch.nan, torch.inf, -torch.inf])
    slots = torch.randperm(4 * block_size)[:tokens] if tokens < 4 * block_size else torch.arange(tokens)
    packed = [torch.full(shape, 7.0, dtype=dtype) for shape in packed_shapes(4, 3, block_size, 48, dtype)]
    packed_store(k, v, *packed, slots)
    plain = [torch.full((4, 3, block_size, 48), 7.0, dtype=dtype) for _ in range(2)]
    store_kv_reference(k, v, *plain, slots)
    for found, expected in zip(unpack(*packed), plain, strict=True):
        assert torch.equal(found, expected)


def test_others_keep_the_layout_that_torch_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for head_dim, block_size, dtype in [
        (72, 16, NARROW),
        (272, 16, NARROW),
        (64, 4, NARROW),
        (64, 24, NARROW),
        (64, 16, torch.float16),
        (72, 16, torch.float32),
    ]:
        assert not packs(CPU, dtype, head_dim, block_size)
        (layer,) = KVCache(KVShape(1, 2, head_dim), 3, block_size, CPU, dtype).layers
        assert layer.keys.shape == (4, 2, block_size, head_dim)
    monkeypatch.setattr(attention, "_functions", lambda dtype: None)
    (layer,) = KVCache(KVShape(1, 2, 64), 3, 16, CPU, NARROW).layers
    assert layer.keys.shape == (4, 2, 16, 64)
    with pytest.raises(RuntimeError, match="needs the C"):
        packed_store(*torch.zeros(2, 1, 1, 16), *torch.zeros(2, 1), torch.zeros(1))


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_the_reference_is_taken_where_it_is_asked_for(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "path", lambda: "reference")
    assert attention._functions.__wrapped__(dtype) is None
