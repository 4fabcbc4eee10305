from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engine.attention.backend import KVLayer
from engine.attention.metadata import AttentionMetadata
from engine.attention.native_backend import NativeBackend
from engine.attention.select import select_backend
from engine.attention.torch_backend import TorchBackend
from engine.attention.triton_backend import TritonBackend
from engine.core.plan import Plan, ScheduledRequest
from engine.core.sampling_params import SamplingParams
from engine.kv_cache import KVCache, KVShape
from engine.worker.batch import BatchBuilder
from kernels.native.attention import packs

CPU = torch.device("cpu")
PARAMS = SamplingParams(max_tokens=1)
HEADS, KV_HEADS, DIM, BLOCK, LENGTH = 4, 2, 64, 16, 920


class Sequences:
    """Two sequences of random queries, keys and values, whose tokens are computed in whatever pieces one likes."""

    def __init__(self, dtype: torch.dtype, kv_cache_dtype: str, *, invariant: bool) -> None:
        generator = torch.Generator().manual_seed(7)
        self._numbers = [
            [
                torch.randn(LENGTH, heads, DIM, generator=generator).to(dtype)
                for heads in (HEADS, KV_HEADS, KV_HEADS)
            ]
            for _ in range(2)
        ]
        per_sequence = -(-LENGTH // BLOCK)
        order = torch.randperm(2 * per_sequence, generator=generator).tolist()
        self._blocks = [order[:per_sequence], order[per_sequence:]]
        self._cache = KVCache(KVShape(1, KV_HEADS, DIM), 2 * per_sequence, BLOCK, CPU, dtype, kv_cache_dtype)
        self.backend = self._cache.layers[0].backend
        self._builder = BatchBuilder(self._cache, CPU, invariant=invariant)

    def step(self, pieces: Sequence[tuple[int, int, int]], window: int | None = None) -> list[Tensor]:
        """(sequence, from, to) → the outputs of each piece's tokens."""
        scheduled_requests = [
            # Each token names itself, so that its row is found again.
            ScheduledRequest(
                s, list(range(s * LENGTH + first, s * LENGTH + last)), first, self._blocks[s], PARAMS, False
            )
            for s, first, last in pieces
        ]
        batch = self._builder.build(Plan(scheduled_requests))
        names = batch.tokens.tolist()
        q, k, v = (
            torch.stack([self._numbers[name // LENGTH][i][name % LENGTH] for name in names]) for i in range(3)
        )
        (layer,) = self._cache.layers
        self.backend.store(layer, k, v, batch.attention)
        out = self.backend.forward(q, layer, batch.attention, scale=DIM**-0.5, window=window, softcap=20.0)
        rows = {name: row for row, name in enumerate(names)}
        return [
            torch.stack([out[rows[name]] for name in scheduled.tokens]) for scheduled in scheduled_requests
        ]


@pytest.fixture
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No C: the cache lies as torch reads it."""
    monkeypatch.setattr("engine.attention.select.packs", lambda *shape: False)


def check(sequences: Sequences, window: int | None) -> None:
    """A token is the same to the bit alone, batched, chunked and drafted."""
    (whole,) = sequences.step([(0, 0, LENGTH)], window)
    sequences.step([(1, 0, 200)], window)
    # As chunks of a prompt beside another's decodes, which are also an end after a prefix hit or a preemption.
    done = 0
    for i, count in enumerate([1, 63, 17, 16, 100, 59, 9, 65, 300, 290]):
        found, _ = sequences.step([(0, done, done + count), (1, 200 + i, 201 + i)], window)
        assert torch.equal(found, whole[done : done + count])
        done += count
    assert done == LENGTH
    for position in [0, 1, 63, 64, 127, 191, 192, 255, 256, 300, 319, 320, 321, 383, 384, 511, 512, 640, 919]:
        (alone,) = sequences.step([(0, position, position + 1)], window)
        assert torch.equal(alone[0], whole[position]), position
        (beside, _, _) = sequences.step([(0, position, position + 1), (1, 190, 191), (1, 210, 215)], window)
        assert torch.equal(beside, alone), position
    # Draft tokens: several rows, within and across tiles and parts.
    for first, last in [
        (2, 5),
        (60, 69),
        (188, 197),
        (254, 258),
        (318, 327),
        (380, 388),
        (510, 515),
        (700, 716),
    ]:
        drafts, _ = sequences.step([(0, first, last), (1, 210, 212)], window)
        assert torch.equal(drafts, whole[first:last]), first


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_in_c_a_token_is_the_same_to_the_bit(dtype: torch.dtype, window: int | None) -> None:
    if not packs(CPU, dtype, DIM, BLOCK):
        pytest.skip("no C compiler, or for bfloat16 no AVX-512")
    check(Sequences(dtype, "auto", invariant=False), window)


@pytest.mark.usefixtures("torch_alone")
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize(
    ("dtype", "kv_cache_dtype"),
    [
        (torch.float32, "auto"),
        (torch.float32, "int8"),
        (torch.bfloat16, "auto"),
        (torch.bfloat16, "fp8"),
        (torch.float16, "auto"),
    ],
    ids=str,
)
def test_in_torch_it_is_where_all_take_one_path(
    dtype: torch.dtype, kv_cache_dtype: str, window: int | None
) -> None:
    check(Sequences(dtype, kv_cache_dtype, invariant=True), window)


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)], ids=str)
def test_torch_and_c_attend_alike(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, tolerance: float, window: int | None
) -> None:
    if not packs(CPU, dtype, DIM, BLOCK):
        pytest.skip("no C compiler, or for bfloat16 no AVX-512")
    packed = Sequences(dtype, "auto", invariant=False)
    monkeypatch.setattr("engine.attention.select.packs", lambda *shape: False)
    others = [Sequences(dtype, "auto", invariant=invariant) for invariant in (False, True)]
    assert isinstance(packed.backend, NativeBackend)
    assert all(isinstance(other.backend, TorchBackend) for other in others)
    for pieces in [[(0, 0, 150)], [(0, 150, 151), (1, 0, 30)], [(0, 151, 155), (1, 30, 31)]]:
        expected = packed.step(pieces, window)
        for other in others:
            for ours, theirs in zip(expected, other.step(pieces, window), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_a_backend_is_selected_by_device_dtype_and_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.attention.select.packs", lambda *shape: True)
    assert isinstance(select_backend(CPU, torch.bfloat16, None, DIM, BLOCK), NativeBackend)
    # C reads no quantized cache.
    assert isinstance(select_backend(CPU, torch.bfloat16, torch.int8, DIM, BLOCK), TorchBackend)
    monkeypatch.setattr("engine.attention.select.packs", lambda *shape: False)
    assert isinstance(select_backend(CPU, torch.bfloat16, None, DIM, BLOCK), TorchBackend)
    monkeypatch.setattr("kernels.launch.path", lambda: "triton")
    for stored in (None, torch.int8):
        assert isinstance(select_backend(CPU, torch.bfloat16, stored, DIM, BLOCK), TritonBackend)


@pytest.mark.usefixtures("torch_alone")
@pytest.mark.parametrize(
    ("dtype", "kv_cache_dtype", "by_dimension"),
    [(torch.bfloat16, "auto", True), (torch.float32, "auto", False), (torch.bfloat16, "int8", False)],
    ids=str,
)
def test_torch_has_keys_by_dimension_where_bags_read_them(
    dtype: torch.dtype, kv_cache_dtype: str, by_dimension: bool
) -> None:
    (layer,) = KVCache(KVShape(1, 2, 48), 5, 16, CPU, dtype, kv_cache_dtype).layers
    assert layer.keys.shape == layer.values.shape == (6, 2, 16, 48)
    assert layer.values.is_contiguous()
    assert layer.keys.is_contiguous() is not by_dimension
    assert layer.keys.transpose(2, 3).is_contiguous() is by_dimension


def test_c_rejects_the_metadata_of_another_backend() -> None:
    metadata = AttentionMetadata(torch.zeros(1, dtype=torch.int64))
    backend = NativeBackend(CPU, torch.float32)
    layer = KVLayer(backend, torch.zeros(1), torch.zeros(1))
    with pytest.raises(ValueError, match="built by another backend"):
        backend.forward(torch.zeros(1, HEADS, DIM), layer, metadata, scale=1.0)
