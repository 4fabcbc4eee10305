"""The tests of the policies that are shipped, as ``tollgate test`` runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.__main__ import main
from tests.import_graph import ROOT

POLICIES = ROOT / "policies"
FOLDERS = [POLICIES, *sorted((POLICIES / "examples").iterdir())]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_every_shipped_policy_has_tests_and_they_pass(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = main(["test", str(folder), "--json"])
    out, err = capfd.readouterr()
    told = json.loads(out)
    failed = [
        f"{case['at']}: {case['broken'] or case['failures']}"
        for file in told["files"]
        for case in file["cases"]
        if not case["passed"]
    ]
    assert (failed, [file["problems"] for file in told["files"]], err) == ([], [[]], "")
    assert code == 0 and told["passed"] > 0
