from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from engine.attention.metadata import AttentionMetadata
from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.errors import StartupError
from engine.kv_cache import KVCache, KVShape
from engine.worker.runner import Runner
from tests.engine.steps import run
from tests.engine.tiny import SHAPE

CPU = torch.device("cpu")


def test_has_one_block_more_than_it_hands_out_and_starts_empty() -> None:
    cache = KVCache(KVShape(3, 2, 8), 5, 4, CPU, torch.float32)
    assert len(cache.layers) == 3
    assert cache.padding_block == 5
    for layer in cache.layers:
        assert layer.keys.shape == layer.values.shape == (6, 2, 4, 8)
        assert not layer.keys.any()
        assert not layer.values.any()
        assert layer.key_scales is None
        assert layer.value_scales is None


@pytest.mark.parametrize(("name", "dtype"), [("int8", torch.int8), ("fp8", torch.float8_e4m3fn)])
def test_a_quantized_one_has_a_scale_for_each_token_and_head(name: str, dtype: torch.dtype) -> None:
    (layer,) = KVCache(KVShape(1, 2, 8), 5, 4, CPU, torch.bfloat16, name).layers
    assert layer.keys.dtype == layer.values.dtype == dtype
    assert layer.key_scales is not None
    assert layer.value_scales is not None
    assert layer.key_scales.shape == layer.value_scales.shape == (6, 2, 4)


@pytest.mark.parametrize("name", ["auto", "int8", "fp8", "int4"])
def test_a_blocks_bytes_are_those_of_all_tensors_in_all_layers(name: str) -> None:
    shape = KVShape(3, 2, 8)
    cache = KVCache(shape, 5, 4, CPU, torch.bfloat16, name)
    held = sum(tensor.nbytes for layer in cache.layers for tensor in layer.tensors)
    assert shape.block_bytes(4, torch.bfloat16, name) == held // 6


def test_in_bfloat16_a_block_is_as_large_however_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = KVShape(1, 2, 48)
    (packed,) = KVCache(shape, 5, 16, CPU, torch.bfloat16).layers
    monkeypatch.setattr("engine.attention.select.packs", lambda *shape: False)
    (plain,) = KVCache(shape, 5, 16, CPU, torch.bfloat16).layers
    for layer in (packed, plain):
        assert 6 * shape.block_bytes(16, torch.bfloat16) == sum(tensor.nbytes for tensor in layer.tensors)
        # In one piece, whatever it is made of.
        assert all(tensor[3].nbytes * 6 == tensor.nbytes for tensor in layer.tensors)
    assert plain.keys.shape == (6, 2, 16, 48)


def test_another_dtype_is_refused_by_name() -> None:
    with pytest.raises(StartupError, match="int3 is not one of auto, int8, fp8, int4"):
        KVCache(KVShape(1, 1, 8), 5, 4, CPU, torch.bfloat16, "int3")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["auto", "int8", "fp8", "int4"])
def test_copies_are_made_in_order_and_whole(name: str, dtype: torch.dtype) -> None:
    cache = KVCache(KVShape(2, 2, 16), 5, 16, CPU, dtype, name)
    for layer in cache.layers:
        keys, values = torch.randn(2, 32, 2, 16).to(dtype)
        layer.backend.store(layer, keys, values, AttentionMetadata(torch.arange(32)))
    before = [tensor[:2].clone() for layer in cache.layers for tensor in layer.tensors]
    cache.copy([(0, 3), (1, 0), (3, 4)])
    after = [tensor for layer in cache.layers for tensor in layer.tensors]
    for old, new in zip(before, after, strict=True):
        # Bytes, whichever way the blocks lie: without C, keys are turned.
        old, new = (tensor.contiguous().view(torch.int8) for tensor in (old, new))
        assert old.any()
        for block, source in [(0, 1), (1, 1), (3, 0), (4, 0)]:
            assert torch.equal(new[block], old[source])
        assert not new[2].any()


def prompts(lengths: list[int]) -> list[list[int]]:
    numbers = random.Random(5)
    return [[numbers.randrange(2, SHAPE["vocab_size"]) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize(("name", "agreeing"), [("int8", 0.9), ("fp8", 0.6), ("int4", 0.6)])
def test_a_tiny_model_says_nearly_the_same_from_a_quantized_cache(
    tiny_model: Path, tiny_runner: Runner, name: str, agreeing: float
) -> None:
    """Next tokens after 80 prompts: a text would part for good at its first other token."""
    requests = [(prompt, SamplingParams(max_tokens=1, temperature=0)) for prompt in prompts([*range(10, 90)])]
    config = EngineConfig(model=tiny_model, kv_cache_blocks=600, dtype="float32", kv_cache_dtype=name)
    runner = Runner(config)
    full, narrow = run(tiny_runner, requests).tokens, run(runner, requests).tokens
    same = sum(full[i] == narrow[i] for i in full)
    assert agreeing * len(full) <= same
    assert runner.cache.layers[0].keys.element_size() == 1


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_a_quantized_request_does_not_depend_on_neighbours_chunks_or_preemption(
    tiny_model: Path, name: str
) -> None:
    runner = Runner(EngineConfig(model=tiny_model, kv_cache_blocks=64, kv_cache_dtype=name))
    requests = [
        (prompt, SamplingParams(max_tokens=24, temperature=0)) for prompt in prompts([5, 40, 17, 64, 90])
    ]
    together = run(runner, requests)
    assert run(runner, requests, budget=11, sequences=5, late=1).tokens == together.tokens
    tight = run(runner, requests, blocks=12, budget=100, sequences=5)
    assert tight.preempted > 0
    assert tight.tokens == together.tokens
    for i, request in enumerate(requests):
        assert run(runner, [request]).tokens[0] == together.tokens[i]


def test_4_bits_stand_chunks_preemption_and_neighbours(tiny_model: Path) -> None:
    """Not to the same tokens, as a block's rounding depends on what is written at once."""
    runner = Runner(EngineConfig(model=tiny_model, kv_cache_blocks=64, kv_cache_dtype="int4"))
    requests = [
        (prompt, SamplingParams(max_tokens=24, temperature=0)) for prompt in prompts([5, 40, 17, 64, 90])
    ]
    assert runner.cache.layers[0].keys.dtype == torch.uint8
    together = run(runner, requests)
    assert run(runner, requests).tokens == together.tokens
    tight = run(runner, requests, blocks=12, budget=100, sequences=5)
    assert tight.preempted > 0
    assert {len(tokens) for tokens in tight.tokens.values()} == {24}


def test_what_4_bits_cannot_be_is_refused_by_name(tiny_model: Path) -> None:
    with pytest.raises(StartupError, match="--deterministic is not supported with --kv-cache-dtype int4"):
        Runner(EngineConfig(model=tiny_model, kv_cache_dtype="int4", deterministic=True))
    with pytest.raises(StartupError, match="int4 is not supported for this model, which keeps latents"):
        KVCache(KVShape(1, 1, 64, latent=512), 5, 16, CPU, torch.bfloat16, "int4")
    with pytest.raises(StartupError, match="heads of an odd size"):
        KVCache(KVShape(1, 1, 7), 5, 16, CPU, torch.bfloat16, "int4")
