"""The whole engine on its Triton kernels, in their interpreter: token for token what it says on the references."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

pytest.importorskip("triton", reason="triton is installed on Linux alone")


@cache
def told(kernels: str, options: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.engine.worker.triton_run", options],
        env={**os.environ, "TOLLGATE_KERNELS": kernels, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "int8-cache": {"kv_cache_dtype": "int8"},
    "ngram": {"speculation": "ngram"},
    "int4": {"quantization": "int4"},
}


@pytest.mark.parametrize("name", CASES)
def test_its_tokens_are_those_of_the_references(name: str) -> None:
    graphs = name == "plain"
    found = told("triton", json.dumps({"engine": CASES[name], "graphs": graphs}))
    expected = told("reference", json.dumps({"engine": CASES[name], "graphs": False}))
    assert [len(tokens) for tokens in expected["answers"]] == [6] * 4
    assert found["answers"] == expected["answers"]
    assert (found["replays"] > 0) == graphs


def test_recordings_of_the_references_take_each_steps_own_input() -> None:
    found = told("reference", json.dumps({"engine": {}, "graphs": True}))
    assert found["replays"] > 0
    assert found["answers"] == told("reference", json.dumps({"engine": {}, "graphs": False}))["answers"]
