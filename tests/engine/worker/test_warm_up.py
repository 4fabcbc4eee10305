"""After the warm-up nothing is compiled any more, whatever comes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine.worker.warm_up import ServingLimits, largest, plans
from tests.engine.models.hub import save
from tests.engine.tiny import SHAPE, write_model

pytest.importorskip("triton", reason="triton is installed on Linux alone")


def served(*asked: dict[str, Any]) -> list[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.worker.dry_launch", json.dumps(asked)],
        env={**environment, "TOLLGATE_KERNELS": "triton", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


WIDE = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64, "num_hidden_layers": 1}


SMALL = {"max_num_seqs": 8, "max_batched_tokens": 100}
LARGE = {"max_num_seqs": 80, "max_batched_tokens": 200}


def test_nothing_is_compiled_while_serving(tmp_path: Path) -> None:
    model = str(write_model(tmp_path / "llama", {**SHAPE, **WIDE}))
    case = {"model": model, "engine": {**SMALL, "quantization": "int8"}, "requests": 40, "graphs": True}
    [found] = served(case)
    # Without such a warm-up it is seen.
    [before] = served({**case, "graphs": False, "as_before": True})
    assert before["after"] > 0
    assert found["after"] == 0 and found["warmed"] > 0


@pytest.mark.slow
def test_nothing_is_compiled_while_serving_other_kinds_of_models(tmp_path: Path) -> None:
    llama = str(write_model(tmp_path / "llama", {**SHAPE, **WIDE}))
    for family, more in (("Qwen3", {"head_dim": 64}), ("Mixtral", {"num_local_experts": 5})):
        save(tmp_path / family, family, **{"num_hidden_layers": 1, **more})
    # In one process, which keeps what is compiled: first what the others would compile, too.
    cases = [
        {"model": llama, "engine": {**SMALL, "speculation": "ngram"}, "requests": 40},
        {"model": llama, "engine": {**LARGE, "quantization": "int4"}, "requests": 90},
        {"model": llama, "engine": {**SMALL, "kv_cache_dtype": "fp8", "max_adapters": 2}, "requests": 40},
        {"model": str(tmp_path / "Qwen3"), "engine": SMALL, "requests": 40, "graphs": True},
        {"model": str(tmp_path / "Mixtral"), "engine": LARGE, "requests": 90},
    ]
    found = served(*cases)
    assert [one["after"] for one in found] == [0] * len(cases)
    assert all(one["warmed"] > 0 for one in found)


def test_the_largest_step_is_as_large_as_a_step_can_be() -> None:
    for sequences, tokens, length in ((4, 64, 1000), (4, 66, 1000), (8, 8, 5), (3, 100, 20)):
        limits = ServingLimits(sequences, tokens, length, [0] * 100)
        plan = largest(limits)
        assert next(plans(limits)) == plan
        assert len(plan.requests) == sequences
        assert plan.tokens == min(tokens, (length - 1) * sequences) or length < tokens
        assert all(scheduled.sampling is not None and scheduled.end < length for scheduled in plan.requests)


def test_no_step_is_larger_than_one_may_be() -> None:
    limits = ServingLimits(80, 200, 300, [0] * 19, adapters=True)
    steps = list(plans(limits))
    assert all(plan.tokens <= 200 and len(plan.requests) <= 80 for plan in steps)
    assert all(scheduled.start >= 0 and scheduled.end <= 300 for plan in steps for scheduled in plan.requests)
    sizes = sorted({len(plan.requests[0].tokens) for plan in steps if len(plan.requests) == 1})
    assert sizes[:17] == list(range(1, 18)) and max(sizes) == 200
    assert all(after <= 2 * before for before, after in pairwise(sizes))
