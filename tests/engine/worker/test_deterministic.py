"""``--deterministic``: a request's tokens and logprobs are the same bits whatever happens around it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.core.logprobs import TokenLogprobs
from engine.core.sampling_params import SamplingParams
from engine.errors import StartupError
from engine.worker.runner import Runner
from engine.worker.speculative import FixedDraftLength
from kernels.native.dense import multiplies
from tests.engine.models.hub import LATENT_MOE, save
from tests.engine.steps import run

Requests = list[tuple[list[int], SamplingParams]]
Answer = tuple[list[int], list[TokenLogprobs]]

FAMILIES: dict[str, dict[str, Any]] = {
    # So many inputs to so few outputs that threads share a single row's sums.
    "Llama": {"intermediate_size": 3072},
    "Qwen3": {"head_dim": 32, "tie_word_embeddings": True},
    "Gemma3Text": {"head_dim": 32, "sliding_window": 9},
    "Mixtral": {"num_local_experts": 4, "intermediate_size": 64},
    "DeepseekV3": {**LATENT_MOE, "q_lora_rank": None},
}
NARROW: dict[str, Any] = {"deterministic": True, "dtype": "bfloat16"}
CASES: list[tuple[str, dict[str, Any], int]] = [
    # Without the flag, too.
    ("Llama", {"dtype": "float32"}, 2),
    ("Mixtral", NARROW, 1),
    ("Qwen3", {**NARROW, "quantization": "int8"}, 2),
    ("DeepseekV3", NARROW, 1),
    # Attention in C, where there is some.
    ("Gemma3Text", {**NARROW, "block_size": 16}, 1),
]
MORE: list[tuple[str, dict[str, Any], int]] = [
    *((family, {"dtype": "float32"}, 1) for family in FAMILIES),
    ("Llama", {"dtype": "float32", "deterministic": True}, 1),
    *((family, NARROW, 1) for family in FAMILIES if family not in ("Mixtral", "DeepseekV3")),
    ("DeepseekV3", {**NARROW, "kv_cache_dtype": "int8"}, 2),
    ("Llama", NARROW, 2),
    *((family, {**NARROW, "quantization": "int4"}, 1) for family in ("Qwen3", "Mixtral")),
    ("Qwen3", {**NARROW, "kv_cache_dtype": "int8"}, 1),
    ("Llama", {**NARROW, "kv_cache_dtype": "fp8"}, 1),
    ("Gemma3Text", {**NARROW, "dtype": "float16", "kv_cache_dtype": "int8"}, 1),
    ("Llama", {**NARROW, "dtype": "float32", "quantization": "int4", "kv_cache_dtype": "int8"}, 1),
    ("Qwen3", {**NARROW, "block_size": 16}, 1),
]
LENGTHS = (41, 75, 17, 3, 1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    for family, changes in FAMILIES.items():
        save(root / family, family, num_hidden_layers=2, **changes)
        (root / family / "draft").mkdir()
    return {family: root / family for family in FAMILIES}


@pytest.fixture(autouse=True)
def as_many_threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def name(family: str, settings: dict[str, Any], threads: int) -> str:
    words = ["deterministic" if value is True else str(value) for value in settings.values()]
    return "-".join([family, *words, f"{threads}-threads"])


def likeness(folder: Path) -> Path:
    """A model that often says what that of ``folder`` says."""
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    for name, weight in weights.items():
        if weight.dim() > 1:
            weights[name] = weight + 0.02 * weight.std() * torch.randn(weight.shape, generator=generator)
    save_file(weights, folder / "draft" / "model.safetensors", metadata={"format": "pt"})
    (folder / "draft" / "config.json").write_bytes((folder / "config.json").read_bytes())
    return folder / "draft"


def requests() -> Requests:
    """Greedy ones, which find near ties among 320 tokens, and every third one drawn by chance."""
    numbers = random.Random(0)
    greedy = SamplingParams(max_tokens=14, temperature=0, logprobs=2)
    sampled = replace(greedy, temperature=0.9, top_p=0.95)
    return [
        (
            [numbers.randrange(2, 9 if i % 2 else 320) for _ in range(length)],
            replace(sampled if i % 3 == 2 else greedy, seed=i, max_tokens=14 + i),
        )
        for i, length in enumerate(LENGTHS)
    ]


def answers(runner: Runner, asked: Requests, **options: Any) -> list[Answer]:
    outcome = run(runner, asked, **options)
    return [(outcome.tokens[i], outcome.logprobs[i]) for i in range(len(asked))]


def always(runner: Runner) -> Runner:
    """Draft tokens even where it does not pay."""
    assert runner.speculation is not None
    runner.speculation.policy = FixedDraftLength(4)
    return runner


@pytest.mark.parametrize(
    ("family", "settings", "threads"),
    [
        pytest.param(*case, id=name(*case), marks=pytest.mark.slow if case in MORE else [])
        for case in CASES + MORE
    ],
)
def test_answers_are_the_same_bits(
    folders: dict[str, Path], family: str, settings: dict[str, Any], threads: int
) -> None:
    settings = {"block_size": 4, **settings}
    config = EngineConfig(folders[family], device="cpu", threads=threads, kv_cache_blocks=240, **settings)
    tight, tight_for_drafts = (27, 34) if config.block_size == 4 else (9, 10)
    runner = Runner(config)
    asked = requests()
    alone = [answers(runner, [request])[0] for request in asked]
    assert all(len(tokens) == len(logprobs) for tokens, logprobs in alone)
    assert len({tuple(tokens) for tokens, _ in alone}) == len(asked)

    assert answers(runner, asked) == alone
    assert answers(runner, asked, sequences=4, late=3) == alone
    for budget in (7, 16, 64):
        assert answers(runner, asked, sequences=5, budget=budget, late=2) == alone, budget

    few = run(runner, asked, sequences=5, blocks=tight, budget=160)
    # Behind windows no request grows beyond what it was admitted with (tests/engine/worker/test_windows.py).
    assert few.preempted > 0 or family == "Gemma3Text"
    assert [(few.tokens[i], few.logprobs[i]) for i in range(len(asked))] == alone

    twice = run(runner, asked + asked, late=2)
    assert twice.hit_tokens > 0
    assert [(twice.tokens[i], twice.logprobs[i]) for i in range(2 * len(asked))] == alone + alone

    guessers: tuple[dict[str, Any], ...] = (
        {"speculation": "ngram"},
        {"speculation": "draft", "draft_model": likeness(folders[family])},
    )
    accepted = proposed = 0
    for changes in guessers:
        speculating = always(Runner(replace(config, **changes)))
        disturbances: tuple[dict[str, int], ...] = (
            {"late": 2},
            {"budget": 13, "sequences": 3, "blocks": tight_for_drafts},
        )
        for options in disturbances:
            assert answers(speculating, asked, **options) == alone, (changes, options)
        assert speculating.speculation is not None
        accepted += speculating.speculation.accepted
        proposed += speculating.speculation.proposed
    assert 0 < accepted < proposed


@pytest.fixture(params=["C", "torch"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in C, where there is a compiler, and those of libraries, as where there is none."""
    if request.param == "torch":
        monkeypatch.setattr("engine.layers.linear.multiplies", lambda dtype: False)
        monkeypatch.setattr("engine.attention.select.packs", lambda *shape: False)
    elif not multiplies(torch.float32):
        pytest.skip("no C compiler")


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("settings", [{"dtype": "float32"}, NARROW], ids=["float32", "bfloat16"])
def test_long_ones_are_the_same_bits(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Past lengths at which libraries cut their sums, of attention (320) and of products (704 and 1,536 inputs)."""
    changes = {"max_position_embeddings": 800, "intermediate_size": 1536, "num_hidden_layers": 2}
    save(tmp_path, "Llama", **changes)
    runner = Runner(EngineConfig(tmp_path, device="cpu", threads=1, kv_cache_blocks=150, **settings))
    numbers = random.Random(0)
    params = SamplingParams(max_tokens=6, temperature=0, logprobs=2)
    asked = [([numbers.randrange(2, 320) for _ in range(length)], params) for length in (318, 700, 385, 5)]
    alone = [answers(runner, [request])[0] for request in asked]
    assert answers(runner, asked, late=2) == alone
    assert answers(runner, asked, budget=100, sequences=3) == alone
    twice = run(runner, asked + asked, late=2)
    assert twice.hit_tokens > 0
    assert [(twice.tokens[i], twice.logprobs[i]) for i in range(8)] == alone + alone


def test_two_ranks_give_the_same_bits_in_company_as_alone(folders: dict[str, Path]) -> None:
    config = EngineConfig(
        folders["Llama"], device="cpu", threads=1, kv_cache_blocks=60, tensor_parallel=2, **NARROW
    )
    runner = Runner(config)
    try:
        asked = requests()[1:]
        alone = [answers(runner, [request])[0] for request in asked]
        assert answers(runner, asked, sequences=5, budget=16, late=2) == alone
    finally:
        runner.ranks.close()


def test_it_is_refused_where_it_has_not_been_seen(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.worker.runner.pick_device", lambda name: torch.device("cuda"))
    with pytest.raises(StartupError, match="--deterministic is supported on a CPU only"):
        Runner(EngineConfig(folders["Llama"], kv_cache_blocks=60, deterministic=True))
