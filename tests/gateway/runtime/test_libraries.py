"""An edit that first asks for a large library does not hold up the event loop while it is loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.import_graph import ROOT

CODE = """
import asyncio, json, pathlib, sys, threading
from gateway.observe.metrics import Metrics
from gateway.policy.loader import Loaded
from gateway.runtime.generations import Generations
from gateway.runtime.worker_state import WorkerState
from tests.fakes import policy

class Told:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            print("on the loop" if threading.current_thread() is threading.main_thread() else "beside it")

async def main():
    generations = Generations(WorkerState(Metrics(), state_dir=pathlib.Path(sys.argv[3])))
    sys.meta_path.insert(0, Told())
    await generations.apply_policy(Loaded(policy(**json.loads(sys.argv[2])), {}, "", ()))
    await generations.aclose()

asyncio.run(main())
"""
VERTEX = {"kind": "gemini", "vertex": {"project": "p", "location": "europe-west1"}}


@pytest.mark.parametrize(
    ("module", "more"),
    [
        ("redis", {"store": "redis://127.0.0.1:1/0"}),
        ("redis", {"cache_store": "redis://127.0.0.1:1/0"}),
        ("jwt", {"jwt": [{"issuer": "https://id.example.com", "audience": "a", "jwks": "keys.json"}]}),
        (
            "jwt",
            {"backends": {"up": VERTEX}, "models": {"m": {"targets": [{"backend": "up", "model": "x"}]}}},
        ),
    ],
    ids=["store", "cache_store", "issuer", "vertex"],
)
def test_a_library_is_loaded_beside_the_loop(tmp_path: Path, module: str, more: dict[str, object]) -> None:
    command = [sys.executable, "-c", CODE, module, json.dumps(more), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout == "beside it\n", done.stderr
