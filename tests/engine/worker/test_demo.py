"""The bundled model through the real worker: what it says must not depend on company."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.server.tokenizer import Tokenizer
from engine.weights.source import locate
from engine.worker.runner import Runner
from tests.engine import dense
from tests.engine.steps import run

TOPICS = ["a dog", "the sea", "seven plus five", "rain", "a train", "bread", "the moon", "my friend"]
FORMS = [
    "What is {}?",
    "Tell me about {}.",
    "{}",
    "Write a short story about {}, please, and make it a good one.",
]


@pytest.fixture(scope="module")
def requests() -> list[tuple[list[int], SamplingParams]]:
    """64 prompts of different lengths."""
    tokenizer = Tokenizer(locate("demo"))
    texts = [form.format(topic) * (1 + i % 2) for i, topic in enumerate(TOPICS) for form in FORMS]
    texts += ["Once upon a time, " + text for text in texts]
    params = SamplingParams(max_tokens=16, temperature=0, stop_token_ids=tokenizer.stop_ids)
    return [(tokenizer.encode(text, special=True), params) for text in texts]


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(EngineConfig(model=locate("demo"), kv_cache_blocks=1024, threads=1))


def test_it_computes_in_float32_and_loads_whole(runner: Runner) -> None:
    assert runner.dtype == torch.float32
    assert runner.max_model_len == 2048


def test_a_batch_of_64_says_what_each_says_alone(
    runner: Runner, requests: list[tuple[list[int], SamplingParams]]
) -> None:
    together = run(runner, requests, budget=4096)
    assert together.largest == 64
    for i in range(0, 64, 3):
        assert run(runner, [requests[i]]).tokens[0] == together.tokens[i]


def test_it_equals_the_dense_forward(
    runner: Runner, requests: list[tuple[list[int], SamplingParams]]
) -> None:
    folder = locate("demo")
    shape = json.loads((folder / "config.json").read_bytes())
    weights = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
    for prompt, params in requests[::16]:
        found = run(runner, [(prompt, params)], budget=64).tokens[0]
        assert found == dense.greedy(weights, shape, prompt, len(found))
