from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.config import EngineConfig
from engine.core.sampling_params import Grammar, SamplingParams
from engine.errors import StartupError
from engine.grammar.masks import GrammarManager
from engine.worker.device import check_kernels, pick_device, pick_dtype
from engine.worker.runner import Runner
from kernels.launch import path
from tests.engine import dense
from tests.engine.steps import run
from tests.engine.tiny import SHAPE, make_weights

GREEDY = SamplingParams(max_tokens=24, temperature=0)


def prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    numbers = random.Random(seed)
    return [[numbers.randrange(2, SHAPE["vocab_size"]) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def weights(tiny_model: Path) -> dict[str, torch.Tensor]:
    return load_file(tiny_model / "model.safetensors")


LENGTHS = [1, 2, 15, 16, 17, 31, 33, 64, 65, 100]


@pytest.fixture(scope="module")
def expected(weights: dict[str, torch.Tensor]) -> list[list[int]]:
    """What a plain forward over the same weights says."""
    return [dense.greedy(weights, SHAPE, prompt, GREEDY.max_tokens) for prompt in prompts(LENGTHS)]


def test_the_expected_texts_are_a_test_at_all(expected: list[list[int]]) -> None:
    assert len({tuple(tokens) for tokens in expected}) == len(expected)
    assert sum(len(set(tokens)) for tokens in expected) > 5 * len(expected)


def test_one_at_a_time_equals_the_dense_forward(tiny_runner: Runner, expected: list[list[int]]) -> None:
    found = [run(tiny_runner, [(prompt, GREEDY)]).tokens[0] for prompt in prompts(LENGTHS)]
    assert found == expected


@pytest.mark.parametrize(("budget", "late"), [(512, 0), (16, 0), (11, 2), (10, 3)])
def test_batched_and_chunked_equals_the_dense_forward(
    tiny_runner: Runner, expected: list[list[int]], budget: int, late: int
) -> None:
    requests = [(prompt, GREEDY) for prompt in prompts(LENGTHS)]
    outcome = run(tiny_runner, requests, budget=budget, sequences=10, late=late)
    assert list(outcome.tokens.values()) == expected


def test_preempted_equals_the_dense_forward(tiny_runner: Runner, expected: list[list[int]]) -> None:
    requests = [(prompt, GREEDY) for prompt in prompts(LENGTHS)]
    outcome = run(tiny_runner, requests, budget=64, sequences=10, blocks=14)
    assert outcome.preempted > 0
    assert list(outcome.tokens.values()) == expected


def test_a_batch_of_64_says_what_each_says_alone(tiny_runner: Runner) -> None:
    lengths = [1 + 7 * i % 90 for i in range(64)]
    requests = [(prompt, SamplingParams(max_tokens=20, temperature=0)) for prompt in prompts(lengths, 1)]
    together = run(tiny_runner, requests)
    assert together.largest == 64
    for i, request in enumerate(requests):
        assert run(tiny_runner, [request]).tokens[0] == together.tokens[i]


def test_seeded_draws_do_not_depend_on_neighbours_or_preemption(tiny_runner: Runner) -> None:
    lengths = [5, 40, 17, 64, 3, 90]
    requests = [
        (prompt, SamplingParams(max_tokens=30, temperature=0.9, top_p=0.95, top_k=50 * (i % 2), seed=i))
        for i, prompt in enumerate(prompts(lengths, 2))
    ]
    together = run(tiny_runner, requests)
    tight = run(tiny_runner, requests, blocks=13, budget=100, sequences=6)
    assert tight.preempted > 0
    assert tight.tokens == together.tokens
    alone = {i: run(tiny_runner, [request]).tokens[0] for i, request in enumerate(requests)}
    assert alone == together.tokens


def test_seeds_differ(tiny_runner: Runner) -> None:
    (prompt,) = prompts([8])
    requests = [(prompt, SamplingParams(max_tokens=12, seed=seed)) for seed in range(8)]
    assert len({tuple(tokens) for tokens in run(tiny_runner, requests).tokens.values()}) == 8


def test_logits_equal_the_dense_forward(tiny_runner: Runner, weights: dict[str, torch.Tensor]) -> None:
    """To rounding, and where several positions are asked for as well."""
    from engine.core.plan import Plan, ScheduledRequest

    (prompt,) = prompts([70])
    plan = Plan([ScheduledRequest(0, prompt, 0, list(range(5)), GREEDY, False)])
    batch = tiny_runner._batches.build(plan)
    with torch.inference_mode():
        hidden = tiny_runner.model.forward(batch.tokens, batch.positions, batch.attention, tiny_runner.cache)
        found = tiny_runner.model.logits(hidden)
    torch.testing.assert_close(found, dense.logits(weights, SHAPE, prompt), rtol=1e-4, atol=1e-3)


def test_logprobs_equal_the_dense_forward_and_change_no_token(
    tiny_runner: Runner, weights: dict[str, torch.Tensor], expected: list[list[int]]
) -> None:
    asking = SamplingParams(max_tokens=24, temperature=0, logprobs=3)
    both = [(prompt, asking if i % 2 else GREEDY) for i, prompt in enumerate(prompts(LENGTHS))]
    outcome = run(tiny_runner, both, budget=40, sequences=10)
    assert list(outcome.tokens.values()) == expected
    assert set(outcome.logprobs) == set(range(1, len(both), 2))
    for i, reported in outcome.logprobs.items():
        assert [one.token for one in reported] == expected[i]
        prompt = both[i][0]
        truth = dense.logits(weights, SHAPE, prompt + expected[i])[len(prompt) - 1 : -1].log_softmax(-1)
        for row, one in zip(truth, reported, strict=True):
            assert one.logprob == pytest.approx(float(row[one.token]), abs=2e-3)
            assert [value for _, value in one.top] == pytest.approx(row.topk(3).values.tolist(), abs=2e-3)
            assert one.top[0] == (one.token, one.logprob)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 12},
        {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 8, "hidden_size": 40},
        {"num_attention_heads": 8, "num_key_value_heads": 1, "num_hidden_layers": 1},
        {"tie_word_embeddings": True, "rope_theta": 500000.0, "vocab_size": 321},
    ],
    ids=["group-of-3", "no-groups", "one-kv-head", "tied-head"],
)
def test_other_shapes_equal_the_dense_forward(
    model_of: Callable[..., Path], changes: dict[str, object]
) -> None:
    shape = {**SHAPE, **changes}
    runner = Runner(EngineConfig(model=model_of(**changes), kv_cache_blocks=64, block_size=8, threads=1))
    requests = [(prompt, GREEDY) for prompt in prompts([9, 30])]
    expected = [dense.greedy(make_weights(shape), shape, prompt, GREEDY.max_tokens) for prompt, _ in requests]
    assert list(run(runner, requests, sequences=4, budget=12).tokens.values()) == expected


def test_bfloat16_runs_and_stays_near(tiny_model: Path, weights: dict[str, torch.Tensor]) -> None:
    runner = Runner(EngineConfig(model=tiny_model, kv_cache_blocks=64, dtype="bfloat16", threads=1))
    assert runner.cache.layers[0].keys.dtype == torch.bfloat16
    (prompt,) = prompts([20])
    (token,) = run(runner, [(prompt, SamplingParams(max_tokens=1, temperature=0))]).tokens[0]
    assert token in dense.logits(weights, SHAPE, prompt)[-1].topk(3).indices


def test_the_cache_is_sized_by_blocks_by_memory_or_by_need(tiny_model: Path) -> None:
    assert Runner(EngineConfig(model=tiny_model, kv_cache_blocks=40)).cache.blocks == 40
    by_memory = Runner(EngineConfig(model=tiny_model, kv_cache_memory=10 * 2**20))
    assert by_memory.cache.blocks == 10 * 2**20 // (2 * 2 * 2 * 16 * 16 * 4)
    by_need = Runner(EngineConfig(model=tiny_model, max_num_seqs=3, max_model_len=100))
    assert by_need.cache.blocks == 3 * 7


def test_a_small_cache_shortens_the_context_unless_one_was_asked_for(tiny_model: Path) -> None:
    assert Runner(EngineConfig(model=tiny_model, kv_cache_blocks=4)).max_model_len == 64
    with pytest.raises(StartupError, match="--max-model-len 100"):
        Runner(EngineConfig(model=tiny_model, kv_cache_blocks=4, max_model_len=100))
    with pytest.raises(StartupError, match="512 positions"):
        Runner(EngineConfig(model=tiny_model, max_model_len=513))
    with pytest.raises(StartupError, match="less than one KV block"):
        Runner(EngineConfig(model=tiny_model, kv_cache_memory=100))
    with pytest.raises(StartupError, match="more than this machine has"):
        Runner(EngineConfig(model=tiny_model, kv_cache_memory=2**50))


def test_a_gpu_that_is_not_there_is_said_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert pick_device("auto").type == "cpu"
    with pytest.raises(StartupError, match="no GPU"):
        pick_device("cuda")


def test_of_several_gpus_the_one_that_is_asked_for_is_the_current_one(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There Triton launches."""
    chosen = []

    def choose(device: torch.device) -> None:
        chosen.append(device)
        raise InterruptedError

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", choose)
    with pytest.raises(InterruptedError):
        Runner(EngineConfig(model=tiny_model, device="cuda:1"))
    assert chosen == [torch.device("cuda", 1)]
    with pytest.raises(StartupError, match="--device cuda:2, but PyTorch finds 2"):
        pick_device("cuda:2")


def test_the_compute_dtype_is_the_checkpoints_unless_it_is_small(model_of: Callable[..., Path]) -> None:
    folder = model_of(dtype="float16")
    assert pick_dtype("auto", folder, torch.device("cpu")) == torch.float32
    assert pick_dtype("auto", folder, torch.device("cuda")) == torch.float16
    assert pick_dtype("bfloat16", folder, torch.device("cpu")) == torch.bfloat16


def test_a_device_that_is_none_is_said_so(tiny_model: Path) -> None:
    for name in ("foo", "gpu", "cuda:x"):
        with pytest.raises(StartupError, match="--device must be"):
            Runner(EngineConfig(model=tiny_model, device=name))


def test_kernels_that_cannot_be_had_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOLLGATE_KERNELS", "fast")
    monkeypatch.setattr("engine.worker.device.path", path.__wrapped__)
    with pytest.raises(StartupError, match="TOLLGATE_KERNELS=fast is not one of auto, triton, reference"):
        check_kernels(torch.device("cpu"))
    monkeypatch.setenv("TOLLGATE_KERNELS", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(StartupError, match="TRITON_INTERPRET=1"):
        check_kernels(torch.device("cpu"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    check_kernels(torch.device("cpu"))


@pytest.mark.parametrize("choices", [1, 3])
def test_a_slow_mask_changes_no_token_of_anyone(
    tiny_runner: Runner, monkeypatch: pytest.MonkeyPatch, choices: int
) -> None:
    """Steps go on without those whose masks are late, and what they say is the same; siblings, who begin in one step,
    begin although a step waits for none of their masks as long as all of them take."""
    bound = SamplingParams(
        max_tokens=24,
        temperature=1.0,
        seed=3,
        logprobs=1,
        stop_token_ids=frozenset({1}),
        grammar=Grammar("regex", "[a-z]{20}"),
    )
    free = SamplingParams(max_tokens=60, temperature=0, logprobs=1)
    asked = [([5, 6, 7], bound), ([8, 9], free), ([5, 6, 7, 8], bound), ([90] * 20, free)]
    usual = run(tiny_runner, asked, choices=choices)
    compute, late = GrammarManager._fill_slow, []

    def slowly(self: GrammarManager, task: Any) -> Any:
        task.matcher.slow = True
        time.sleep(0.03)
        bits = compute(self, task)
        task.matcher.slow = True
        return bits

    begin = GrammarManager.start

    def watched(self: GrammarManager, draws: Any) -> Any:
        pending = begin(self, draws)
        if pending is not None:
            late.append(pending.late)
        return pending

    monkeypatch.setattr(GrammarManager, "_fill_slow", slowly)
    monkeypatch.setattr(GrammarManager, "start", watched)
    slow = run(tiny_runner, asked, choices=choices)
    assert any(late), "no mask was late: this tests nothing"
    assert slow.tokens == usual.tokens
    assert slow.logprobs == usual.logprobs
