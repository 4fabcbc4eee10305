"""A calibration makes the formulas say what was measured, at loads that were not measured, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.lab.plan.calibration import Calibration, Load, computed, fit, read_calibration
from gateway.lab.plan.chips import Chip
from gateway.lab.plan.errors import PlanError
from gateway.lab.plan.model import read_model
from gateway.lab.plan.precision import precision
from gateway.lab.plan.step_clock import Efficiency, StepClock, step_clock

SHAPE = read_model("params=500M,layers=24,kv_heads=2,head_dim=64,heads=14,hidden=896,vocab=150000")
CPU = Chip("cpu", 16e9, 30e9, {"bf16": 200e9}, 0.1)
BUDGET = 512


def clock(reached: Efficiency) -> StepClock:
    return step_clock(SHAPE, CPU, 1, precision("int4"), 24 * 2 * 64, reached)


def measured(reached: Efficiency, concurrency: int, prompt: float, output: float) -> Load:
    first, whole = computed(Load(concurrency, prompt, output, 0, 0), clock(reached), reached.request, BUDGET)
    return Load(concurrency, prompt, output, first, whole)


@pytest.mark.parametrize(
    "machine",
    [
        Efficiency(0.5, 0.9, 3e-3, 2e-4, 2e-2),
        Efficiency(1.1, 0.2, 5e-4, 1e-5, 1e-3),
    ],
    ids=["slow-memory", "slow-products"],
)
def test_what_was_not_measured_is_computed_within_a_few_percent(machine: Efficiency) -> None:
    seen = [measured(machine, *load) for load in ((1, 80, 32), (1, 400, 32), (4, 240, 32), (16, 240, 32))]
    found = fit(Calibration(seen, "test"), clock, BUDGET)
    assert found.error < 0.03
    for load in ((2, 100, 64), (8, 300, 32), (12, 60, 100)):
        real = measured(machine, *load)
        _, whole = computed(real, clock(found.reached), found.reached.request, BUDGET)
        assert whole == pytest.approx(real.e2e, rel=0.07)
    # Without it they are off by far more.
    _, usual = computed(seen[0], clock(Efficiency()), Efficiency().request, BUDGET)
    assert abs(usual / seen[0].e2e - 1) > 0.2


def written(folder: Path, **changes: object) -> str:
    alone = [[40 * number, 32, 0.02 + 0.002 * number, 0.5 + 0.002 * number] for number in range(1, 9)]
    loads = [
        {"concurrency": 1, "requests": alone},
        {"concurrency": 8, "requests": [[100, 32, 0.2, 1.5]] * 8},
    ]
    told = {"calibration": 1, "model": "m", "server": "http://s", "measured": "2026-11-29", "loads": loads}
    (folder / "measured.json").write_text(json.dumps({**told, **changes}))
    return str(folder / "measured.json")


def test_requests_alone_are_read_in_halves_by_their_prompts(tmp_path: Path) -> None:
    loads = read_calibration(written(tmp_path)).loads
    assert [(load.concurrency, load.prompt) for load in loads] == [(1, 100), (1, 260), (8, 100)]


def test_files_that_are_none_are_told(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="requests alone and several"):
        read_calibration(written(tmp_path, loads=[]))
    with pytest.raises(PlanError, match="its form 2 is not known"):
        read_calibration(written(tmp_path, calibration=2))
    with pytest.raises(PlanError, match="No such file"):
        read_calibration(str(tmp_path / "none.json"))


def test_the_command_plans_by_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("chips: {cpu: {memory: 16GB, bandwidth: 30GB, flops: {bf16: 200G}, usd_per_hour: 0.1}}")
    asked = ["plan", "--model", "params=500M,layers=24,kv_heads=2,head_dim=64", "--chips", str(own), "--json"]
    asked += [
        "--rate",
        "1",
        "--prompt-tokens",
        "100",
        "--output-tokens",
        "10",
        "--sample",
        "50",
        "--slo",
        "e2e=20s",
    ]
    asked += ["--calibration", written(tmp_path)]
    assert main([*asked, "--chip", "cpu,l4"]) == 2
    assert "say which by --calibrated-on" in capsys.readouterr().err
    assert main([*asked, "--chip", "cpu", "--calibrated-on", "gpu"]) == 2
    assert "--calibrated-on gpu: not among the chips" in capsys.readouterr().err
    assert main([*asked, "--chip", "cpu,l4", "--calibrated-on", "cpu,int4"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["calibration"]["error"] < 0.2
    assert told["efficiency"]["bandwidth"] != 0.8
