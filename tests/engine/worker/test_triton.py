"""The whole engine on its Triton kernels, in their interpreter: token for token what it says on the references."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.engine.lora import write_adapter
from tests.engine.models.hub import LATENT, save
from tests.sampling import slow

pytest.importorskip("triton", reason="triton is installed on Linux alone")


def reported(kernels: str, *runs: dict[str, Any]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.engine.worker.triton_run", json.dumps(runs)],
        env={**os.environ, "TOLLGATE_KERNELS": kernels, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


CASES: dict[str, dict[str, Any]] = {
    "plain": {"engine": {}},
    "ngram": {"engine": {"speculation": "ngram"}},
    "int4": {"engine": {"quantization": "int4"}, "requests": 1, "tokens": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_its_tokens_are_those_of_the_references(name: str) -> None:
    graphs = name in ("plain", "ngram")
    [found] = reported("triton", {**CASES[name], "graphs": graphs})
    [expected] = reported("reference", {**CASES[name], "graphs": False})
    tokens, requests = CASES[name].get("tokens", 6), CASES[name].get("requests", 4)
    assert [len(answer) for answer in expected["answers"]] == [tokens] * requests
    assert found["answers"] == expected["answers"]
    assert (found["replays"] > 0) == graphs


WINDOWED = {"head_dim": 16, "sliding_window": 9}
TINY: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    (
        "Gemma2",
        {**WINDOWED, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
        {"kv_cache_dtype": "fp8"},
        {},
    ),
    ("Qwen3", {"head_dim": 24}, {"quantization": "int8"}, {}),
    ("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}, {}, {}),
    ("Youtu", LATENT, {}, {}),
    (
        "Llama",
        {},
        {"block_size": 4, "max_num_seqs": 5, "kv_cache_dtype": "int8"},
        {"choices": 2, "blocks": 9},
    ),
]
"""Family, its shape, the engine's options, the run's."""


@pytest.mark.parametrize(
    ("family", "shape", "engine", "more"), [*slow(*TINY[:-1]), TINY[-1]], ids=[one[0] for one in TINY]
)
def test_other_families_tokens_are_those_of_the_references(
    tmp_path: Path, family: str, shape: dict[str, Any], engine: dict[str, Any], more: dict[str, Any]
) -> None:
    """Recorded; the last with siblings and preemption too."""
    save(tmp_path / family, family, **{"num_hidden_layers": 2, **shape})
    engine = {"max_model_len": 100, **engine}
    asked = {"model": str(tmp_path / family), "engine": engine, "run": more, "tokens": 4}
    [found] = reported("triton", {**asked, "graphs": True})
    [expected] = reported("reference", {**asked, "graphs": False})
    assert found["answers"] == expected["answers"]
    assert len({tuple(tokens) for tokens in expected["answers"]}) >= 4
    assert found["replays"] > 0
    assert (found["preempted"] > 0) == ("blocks" in more)


@pytest.mark.parametrize("kernels", ["reference", *slow("triton")])
def test_steps_with_adapters_are_recorded_too(tmp_path: Path, tiny_model: Path, kernels: str) -> None:
    """Whose a row is, is read on the device; with draft tokens rows are elsewhere than in the batch."""
    weights = load_file(tiny_model / "model.safetensors")
    one = write_adapter(tmp_path / "one", weights, rank=3, seed=1)
    two = write_adapter(tmp_path / "two", weights, rank=8, targets=("q_proj", "down_proj"), seed=2)
    engine = {"max_model_len": 64, "adapters": [("one", str(one)), ("two", str(two))]}
    drafting = {**engine, "speculation": "ngram", "max_drafts": 2}
    asked = {"model": str(tiny_model), "tokens": 5, "run": {"adapters": ["one", "two", None, "one"]}}
    alike = [{**asked, "engine": one} for one in (engine, drafting)] + [
        {**asked, "engine": engine, "run": {}}
    ]
    # Where layers know the rows, steps are replayed that have no adapter.
    [expected, some, plain] = reported(
        "reference", *({**alike[i], "graphs": graphs} for i, graphs in ((0, False), (0, True), (2, False)))
    )
    assert [a == b for a, b in zip(expected["answers"], plain["answers"], strict=True)] == [0, 0, 1, 0]
    assert some["answers"] == expected["answers"]
    found = reported(kernels, *({**one, "graphs": True, "stacked": True} for one in alike))
    assert [one["answers"] for one in found] == [expected["answers"]] * 2 + [plain["answers"]]
    assert found[0]["replays"] > some["replays"] + 2
    assert min(one["replays"] for one in found) > 2


def test_recordings_of_the_references_take_each_steps_own_input() -> None:
    found, expected = reported("reference", *({"engine": {}, "graphs": graphs} for graphs in (True, False)))
    assert found["replays"] > 0
    assert found["answers"] == expected["answers"]
