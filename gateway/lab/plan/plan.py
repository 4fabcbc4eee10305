"""From what is asked to what is found."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gateway.lab.plan.calibration import Calibration, Fit, fit, machine_of
from gateway.lab.plan.candidate import Candidate, Misfit, candidate
from gateway.lab.plan.errors import PlanError
from gateway.lab.plan.money import BreakEven, break_evens
from gateway.lab.plan.options import Question
from gateway.lab.plan.precision import kv_layer_bytes
from gateway.lab.plan.search import Option, Outcome, fewest_replicas, search
from gateway.lab.plan.simulator import Simulator
from gateway.lab.plan.step_clock import Efficiency, step_clock
from gateway.lab.plan.workload import Workload

RATES = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Of the traffic, for the plot."""


@dataclass(frozen=True)
class Change:
    """What the cheapest option would be if something were otherwise."""

    what: str
    replicas: int | None
    """``None``: no number of them keeps the targets."""
    usd_per_month: float | None


@dataclass
class Plan:
    question: Question
    reached: Efficiency
    outcome: Outcome
    fit: Fit | None = None
    changes: list[Change] = field(default_factory=list)
    break_evens: Sequence[BreakEven] = ()
    simulations: int = 0

    @property
    def best(self) -> Option | None:
        return self.outcome.options[0] if self.outcome.options else None


def plan(
    asked: Question,
    calibration: Calibration | None = None,
    *,
    sensitivity: bool,
    progress: Callable[[float, str], None] = lambda share, text: None,
) -> Plan:
    """Raises ``PlanError``."""
    break_evens(asked.against, asked.volume, 0.0)  # a name that is wrong is told before the work
    fitted = None if calibration is None else _fit(asked, calibration)
    reached = Efficiency() if fitted is None else fitted.reached
    bounds, workload = asked.slo.bounds, asked.workload
    with Simulator() as simulator:
        candidates, misfits = _candidates(asked, reached, simulator)
        outcome = search(candidates, workload, bounds, asked.wanted, simulator, progress=progress)
        outcome.misfits[:0] = misfits
        found = Plan(asked, reached, outcome, fitted)
        if (best := found.best) is not None:
            found.break_evens = break_evens(asked.against, asked.volume, best.usd_per_month)
            if sensitivity:
                progress(0.95, "what if it were otherwise")
                found.changes = list(_changes(asked, reached, best, simulator))
        found.simulations = simulator.runs
    return found


def _fit(asked: Question, calibration: Calibration) -> Fit:
    """Raises ``PlanError``."""
    named = machine_of(asked.calibrated_on, {chip.name: chip for chip in asked.chips})
    machines = [
        (chip, ranks, precision)
        for chip in asked.chips
        for ranks in asked.ranks
        for precision in asked.precisions
        if ranks <= chip.per_node
        and (named is None or ((chip.name, ranks) == named[:2] and named[2] in ("", precision.name)))
    ]
    if len(machines) != 1:
        raise PlanError(
            f"--calibration: {len(machines)} ways to serve could have been what was measured: say which by "
            "--calibrated-on, as h100,tp=1,fp8 (one of --chip, --tensor-parallel and --quantization)"
        )
    ((chip, ranks, precision),) = machines
    shape, attention = asked.shape, asked.shape.attention
    layer = kv_layer_bytes(
        asked.serving.kv_dtype, attention.kept_on_rank(ranks), attention.head_dim, attention.latent
    )
    return fit(
        calibration,
        lambda reached: step_clock(shape, chip, ranks, precision, layer, reached),
        asked.serving.max_batched_tokens,
    )


def _candidates(
    asked: Question, reached: Efficiency, simulator: Simulator
) -> tuple[list[Candidate], list[Misfit]]:
    fits: list[Candidate] = []
    misfits: list[Misfit] = []
    for chip in asked.chips:
        for ranks in (one for one in asked.ranks if one <= chip.per_node):
            for precision in asked.precisions:
                found = candidate(
                    asked.shape,
                    chip,
                    ranks,
                    precision,
                    serving=asked.serving,
                    reached=reached,
                    longest=asked.longest,
                    simulator=simulator,
                )
                if isinstance(found, Candidate):
                    fits.append(found)
                else:
                    misfits.append(found)
    return fits, misfits


def _changes(asked: Question, reached: Efficiency, best: Option, simulator: Simulator) -> list[Change]:
    chosen = best.found.candidate
    halved = {name: bound / 2 for name, bound in asked.slo.bounds.items()}
    slower = replace(reached, bandwidth=0.8 * reached.bandwidth, compute=0.8 * reached.compute)
    variants: list[tuple[str, Workload, dict[str, float], Efficiency]] = [
        ("twice the requests", asked.workload.scaled(rate=2), dict(asked.slo.bounds), reached),
        ("prompts twice as long", asked.workload.scaled(prompts=2), dict(asked.slo.bounds), reached),
        ("answers twice as long", asked.workload.scaled(outputs=2), dict(asked.slo.bounds), reached),
        ("targets half as long", asked.workload, halved, reached),
        ("a fifth less of the chip's speed reached", asked.workload, dict(asked.slo.bounds), slower),
    ]
    changes = []
    for what, workload, bounds, efficiency in variants:
        other = candidate(
            chosen.shape,
            chosen.chip,
            chosen.ranks,
            chosen.precision,
            serving=asked.serving,
            reached=efficiency,
            longest=max(asked.longest, workload.longest),
            simulator=simulator,
        )
        option = None
        if isinstance(other, Candidate):
            capacity, _ = other.capacity(workload, workload.hits, bounds.get("itl"))
            fewest = max(1, math.ceil(workload.mean_rate / capacity * 0.999))
            option = fewest_replicas(other, workload, bounds, asked.wanted, simulator, fewest)
        if isinstance(option, Option):
            changes.append(Change(what, option.found.replicas, option.usd_per_month))
        else:
            changes.append(Change(what, None, None))
    return changes


def cost_by_rate(option: Option, rate: float) -> list[tuple[float, float]]:
    """(requests a second, dollars a month), each replica with as much as it has at ``rate``."""
    each = rate / option.found.replicas
    price = option.found.candidate.usd_per_month
    return [(rate * share, math.ceil(rate * share / each - 1e-9) * price) for share in RATES]


def efficiency_told(reached: Efficiency) -> dict[str, Any]:
    return {name: getattr(reached, name) for name in Efficiency.__dataclass_fields__}
