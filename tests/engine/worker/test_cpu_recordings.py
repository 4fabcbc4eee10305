"""On a CPU decode steps that are replayed give the same bits as those that are computed layer by layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.core.sampling_params import SamplingParams
from engine.worker.cpu_recordings import MOST
from engine.worker.runner import Runner
from kernels.native.recording import available
from tests.engine.models.hub import save
from tests.engine.steps import run

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")

CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("Llama", {}, {"dtype": "bfloat16"}),
    ("Qwen2", {}, {"dtype": "bfloat16", "quantization": "int4"}),
    ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}, {"dtype": "bfloat16", "quantization": "int8"}),
    ("Qwen3", {"head_dim": 32}, {"dtype": "float32"}),
    ("Gemma3Text", {"head_dim": 32, "sliding_window": 9}, {"dtype": "bfloat16"}),
    ("Gemma3Text", {"head_dim": 32, "sliding_window": 9}, {"dtype": "bfloat16", "deterministic": True}),
    ("Cohere", {}, {"dtype": "bfloat16"}),
]


def name(case: tuple[str, dict[str, Any], dict[str, Any]]) -> str:
    return "-".join([case[0], *map(str, case[2].values())])


def requests(count: int) -> list[tuple[list[int], SamplingParams]]:
    """Of several lengths, so that they end one by one."""
    greedy = SamplingParams(max_tokens=9, temperature=0, logprobs=2)
    return [
        ([(7 * i + j) % 300 + 2 for j in range(1 + 11 * i % 40)], replace(greedy, max_tokens=9 + i))
        for i in range(count)
    ]


@pytest.mark.parametrize("case", CASES, ids=name)
def test_the_same_bits(case: tuple[str, dict[str, Any], dict[str, Any]], tmp_path: Path) -> None:
    family, changes, settings = case
    save(tmp_path / "model", family, num_hidden_layers=3, **changes)
    config = EngineConfig(
        model=tmp_path / "model",
        device="cpu",
        threads=1,
        block_size=16,
        kv_cache_blocks=64,
        max_num_seqs=32,
        **settings,
    )
    answers = []
    for recorded in (True, False):
        runner = Runner(config)
        runner.warm_up()
        if recorded:
            assert runner.recordings.graphs is not None
        else:
            runner.recordings.graphs = None
        outcome = run(runner, requests(5))
        answers.append((outcome.tokens, outcome.logprobs))
        if recorded:
            assert sorted(runner.recordings.graphs._recorded) == [(count, 1) for count in range(1, 6)]
    assert answers[0] == answers[1]


def test_more_rows_than_are_worth_it_are_not_recorded(tmp_path: Path) -> None:
    save(tmp_path / "model", "Llama", num_hidden_layers=1)
    config = EngineConfig(
        model=tmp_path / "model", device="cpu", threads=1, block_size=16, kv_cache_blocks=128, max_num_seqs=32
    )
    runner = Runner(config)
    runner.warm_up()
    run(runner, requests(MOST + 1))
    assert max(runner.recordings.graphs._recorded) == (MOST, 1)


def test_mixtures_choose_experts_in_python_and_are_not_recorded(tmp_path: Path) -> None:
    save(tmp_path / "model", "Mixtral", num_hidden_layers=1, num_local_experts=4, intermediate_size=64)
    runner = Runner(
        EngineConfig(
            model=tmp_path / "model",
            device="cpu",
            threads=1,
            block_size=16,
            kv_cache_blocks=16,
            max_num_seqs=4,
        )
    )
    runner.warm_up()
    assert runner.recordings.graphs is None
    assert run(runner, requests(2)).tokens


def test_what_reads_numbers_for_several_rows_alone_ends_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "model", "Llama", num_hidden_layers=1)
    config = EngineConfig(
        model=tmp_path / "model", device="cpu", threads=1, block_size=16, kv_cache_blocks=32, max_num_seqs=4
    )
    plain = Runner(config)
    wanted = run(plain, requests(3)).tokens
    runner = Runner(config)
    forward = runner.model.forward

    def reads(tokens: Tensor, *rest: Any) -> Tensor:
        return forward(tokens if len(tokens) == 1 else torch.tensor(tokens.tolist()), *rest)

    monkeypatch.setattr(runner.model, "forward", reads)
    runner.warm_up()
    assert runner.recordings.graphs is not None
    assert run(runner, requests(3)).tokens == wanted
    assert runner.recordings.graphs is None
