"""The tests of the policies that are shipped, as ``tollgate test`` runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.import_graph import ROOT

POLICIES = ROOT / "policies"
FOLDERS = [POLICIES, *sorted((POLICIES / "examples").iterdir())]
Files = list[dict[str, Any]]


@pytest.fixture(scope="module")
def files() -> Files:
    """What ``tollgate test`` says of all of them, in an environment that gives no provider's key."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    command = [sys.executable, "-m", "gateway", "test", *map(str, FOLDERS), "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.stderr == ""
    return list(json.loads(done.stdout)["files"])


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_every_shipped_policy_has_tests_and_they_pass(folder: Path, files: Files) -> None:
    [told] = [file for file in files if Path(file["file"]).parent == folder]
    failed = [
        f"{case['at']}: {case['broken'] or case['failures']}" for case in told["cases"] if not case["passed"]
    ]
    assert (failed, told["problems"]) == ([], [])
    assert told["cases"]
