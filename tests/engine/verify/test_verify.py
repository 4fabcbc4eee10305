"""The command on a tiny model and this CPU: what is right is called so, and what is not is, too."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.__main__ import parser
from engine.config import EngineConfig
from engine.verify import run as running
from engine.verify.features import FEATURES, Feature
from engine.verify.outputs import EngineOutput, VerifySetup
from engine.verify.run import FeatureResult, markdown, summary, verify
from kernels.bench.pool import Lost
from tests.sampling import slow

ROOT = Path(__file__).parents[3]


ON_CPUS = ["eager", "ngram", "LoRA", "chunked", "prefix", "preemption", "weights fp8"]
"""All that costs no more than this: the kernels, speculation, adapters, chunks, cached prefixes, preemption."""


@pytest.mark.parametrize("words", [ON_CPUS[-2:], *slow(ON_CPUS)], ids=["two", "all"])
def test_features_are_right_on_this_cpu(words: list[str], tiny_model: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    command = [
        sys.executable,
        "-m",
        "engine",
        "verify",
        "--model",
        str(tiny_model),
        "--device",
        "cpu",
        "--jobs",
        "1",
    ]
    command += [
        "--tokens",
        "16",
        "--markdown",
        str(table),
        "--json",
        str(tmp_path / "rows.json"),
        "--only",
        *words,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = {
        line.split(" | ")[0][2:]: line.split(" | ")[1] for line in table.read_text().splitlines()[4:-2]
    }
    wanted = [feature.name for feature in FEATURES if any(word in feature.name for word in words)]
    assert list(verdicts) == wanted
    assert verdicts.pop("weights fp8") == "not here"
    assert set(verdicts.values()) == {"ok"}
    assert done.stdout.splitlines()[-1] == f"{len(wanted) - 1} ok, 1 not here."


def fake(features: Mapping[str, Any]) -> Any:
    """In place of processes: each feature's result is its own name's."""

    class Pool:
        def __init__(
            self, work: Any, arguments: Any, jobs: int, deadline: float, begin: Any, take: Any
        ) -> None:
            self._compared, self._begin, self._take = arguments[2], begin, take

        def run(self, names: list[str]) -> None:
            for name in names:
                self._begin(name)
                self._take(name, RIGHT if self._compared else features[name])

    return Pool


RIGHT = EngineOutput([[1, 2]], [[{1: -0.1}, {2: -0.1}]], [True], {"drafts": 0, "chunks": 3})


def test_each_feature_gets_its_verdict(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = [
        Feature("right", "--off"),
        Feature("other tokens", "--no-other"),
        Feature("dies", "--no-dying"),
        Feature("late", "--late"),
        Feature("refused", "--refused"),
        Feature("never happens", "--never", seen="drafts"),
        Feature("happens", "--happens", seen="chunks"),
        Feature("elsewhere", "--elsewhere", only="cuda"),
    ]
    found = {
        **dict.fromkeys([feature.name for feature in features], RIGHT),
        "other tokens": EngineOutput([[1, 7]], [[{1: -0.1}, {7: -0.1}]], [True]),
        "dies": Lost("its process ended"),
        "late": Lost("no time left", skipped=True),
        "refused": EngineOutput(refused="no such thing on this chip"),
    }
    monkeypatch.setattr(running, "Pool", fake(found))
    results: list[FeatureResult] = []
    rows = verify(VerifySetup(tiny_model, "cpu"), features, on_result=results.append)
    assert [row.verdict for row in rows] == [
        *("ok", "WRONG", "WRONG", "not tried", "not here", "not here", "ok", "not here"),
    ]
    assert sorted(row.feature for row in results) == sorted(feature.name for feature in features)
    # Only what is wrong has its flag in the table, and the last line has all of them.
    table = markdown(rows, "CPU")
    assert "| other tokens | WRONG | 0 | --no-other |" in table and "--off" not in table
    assert summary(rows).endswith("Serve with: --no-other --no-dying")
    assert "its process ended" in table and "no such thing" in table


def test_every_flag_that_is_named_is_one_of_serve() -> None:
    for feature in FEATURES:
        words = feature.off.removeprefix("without ").split()
        options = vars(parser().parse_args(["serve", "--model", "demo", *words]))
        assert len(options) >= 3, feature.off


def test_every_setting_is_one_of_the_engines(tiny_model: Path) -> None:
    assert len({feature.name for feature in FEATURES}) == len(FEATURES)
    for feature in FEATURES:
        EngineConfig(model=tiny_model, **feature.both, **feature.engine)
