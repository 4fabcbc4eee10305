from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from engine.core.plan import Plan, Work
from engine.core.sampling_params import SamplingParams
from engine.layers.attend import attend
from engine.worker.batch import BatchBuilder
from engine.worker.kv_cache import KVCache, KVShape
from kernels.native.attention import packs

CPU = torch.device("cpu")
PARAMS = SamplingParams(max_tokens=1)
HEADS, KV_HEADS, DIM, BLOCK, LENGTH = 4, 2, 64, 16, 330


class Sequences:
    """Two sequences of random queries, keys and values, whose tokens are computed in whatever pieces one likes."""

    def __init__(self, dtype: torch.dtype, kv_cache_dtype: str, *, deterministic: bool) -> None:
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
        self.keys = self._cache.layers[0].keys
        padding = self._cache.padding_block
        self._builder = BatchBuilder(BLOCK, padding, CPU, deterministic=deterministic)

    def step(self, pieces: Sequence[tuple[int, int, int]], window: int | None = None) -> list[Tensor]:
        """(sequence, from, to) → the outputs of each piece's tokens."""
        works = [
            # Each token names itself, so that its row is found again.
            Work(s, list(range(s * LENGTH + first, s * LENGTH + last)), first, self._blocks[s], PARAMS, False)
            for s, first, last in pieces
        ]
        batch = self._builder.build(Plan(works))
        names = batch.tokens.tolist()
        q, k, v = (
            torch.stack([self._numbers[name // LENGTH][i][name % LENGTH] for name in names]) for i in range(3)
        )
        (layer,) = self._cache.layers
        layer.store(k, v, batch.attention.slots)
        out = attend(q, batch.attention, layer, scale=DIM**-0.5, window=window, softcap=20.0)
        rows = {name: row for row, name in enumerate(names)}
        return [torch.stack([out[rows[name]] for name in work.tokens]) for work in works]


@pytest.fixture
def torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No C: the cache lies as torch reads it."""
    monkeypatch.setattr("engine.worker.kv_cache.packs", lambda *shape: False)


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize(
    ("dtype", "kv_cache_dtype", "deterministic"),
    [
        pytest.param(torch.float32, "auto", False, id="float32"),
        pytest.param(torch.float32, "int8", False, id="float32-over-int8"),
        pytest.param(torch.float32, "auto", True, id="float32-deterministic"),
        pytest.param(
            torch.bfloat16,
            "auto",
            False,
            id="bfloat16",
            marks=pytest.mark.skipif(
                not packs(CPU, torch.bfloat16, DIM, BLOCK), reason="torch cuts its sums by shape"
            ),
        ),
        pytest.param(torch.bfloat16, "auto", True, id="bfloat16-deterministic"),
        pytest.param(torch.bfloat16, "fp8", True, id="bfloat16-over-fp8-deterministic"),
        pytest.param(torch.float16, "auto", True, id="float16-deterministic"),
    ],
)
def test_a_token_is_the_same_to_the_bit_alone_batched_chunked_and_guessed(
    dtype: torch.dtype, kv_cache_dtype: str, deterministic: bool, window: int | None
) -> None:
    sequences = Sequences(dtype, kv_cache_dtype, deterministic=deterministic)
    (whole,) = sequences.step([(0, 0, LENGTH)], window)
    sequences.step([(1, 0, 200)], window)
    # As chunks of a prompt beside another's decodes, which are also an end after a prefix hit or a preemption.
    done = 0
    for i, count in enumerate([1, 63, 17, 16, 100, 59, 9, 65]):
        found, _ = sequences.step([(0, done, done + count), (1, 200 + i, 201 + i)], window)
        assert torch.equal(found, whole[done : done + count])
        done += count
    assert done == LENGTH
    for position in [0, 1, 63, 64, 127, 191, 192, 255, 256, 300, 319, 320, 329]:
        (alone,) = sequences.step([(0, position, position + 1)], window)
        assert torch.equal(alone[0], whole[position])
        (beside, _, _) = sequences.step([(0, position, position + 1), (1, 190, 191), (1, 210, 215)], window)
        assert torch.equal(beside, alone)
    # Guesses: several rows, within and across the lengths that decodes are padded to.
    for first, last in [(2, 5), (60, 69), (188, 197), (254, 258), (318, 327)]:
        guesses, _ = sequences.step([(0, first, last), (1, 210, 212)], window)
        assert torch.equal(guesses, whole[first:last])


@pytest.mark.usefixtures("torch_alone")
@pytest.mark.parametrize("window", [None, 100])
def test_torch_alone_keeps_bfloat16s_bits_in_deterministic_mode(window: int | None) -> None:
    test_a_token_is_the_same_to_the_bit_alone_batched_chunked_and_guessed(
        torch.bfloat16, "auto", deterministic=True, window=window
    )


@pytest.mark.parametrize("window", [None, 40])
def test_torch_and_c_attend_alike(monkeypatch: pytest.MonkeyPatch, window: int | None) -> None:
    packed = Sequences(torch.bfloat16, "auto", deterministic=False)
    monkeypatch.setattr("engine.worker.kv_cache.packs", lambda *shape: False)
    plain = Sequences(torch.bfloat16, "auto", deterministic=False)
    assert plain.keys.dim() == 4
    for pieces in [[(0, 0, 150)], [(0, 150, 151), (1, 0, 30)], [(0, 151, 155), (1, 30, 31)]]:
        for ours, theirs in zip(packed.step(pieces, window), plain.step(pieces, window), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0.03, atol=0.03)


def test_deterministic_mode_is_as_right_as_the_other() -> None:
    plain = Sequences(torch.float32, "auto", deterministic=False)
    fixed = Sequences(torch.float32, "auto", deterministic=True)
    for pieces in [[(0, 0, 150)], [(0, 150, 151), (1, 0, 30)]]:
        for ours, theirs in zip(fixed.step(pieces), plain.step(pieces), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
