"""The simulation beside what is known: closed forms of queues, and the engine's own scheduler on the same steps."""

from __future__ import annotations

import numpy as np

from benchmarks.fleet.engines import served_alone
from benchmarks.fleet.machine import LLAMA_8B, roofline
from benchmarks.fleet.queues import at_places, md1_wait, mmc_wait, one_server, servers
from benchmarks.fleet.traffic import TRACE, draw, lengths
from gateway.lab.plan.candidate import Misfit, Serving, candidate
from gateway.lab.plan.chips import read_chips
from gateway.lab.plan.model import read_model
from gateway.lab.plan.precision import PRECISIONS
from gateway.lab.plan.simulator import Simulator
from gateway.lab.plan.step_clock import Efficiency
from gateway.lab.plan.workload import Arrival


def closed_forms(count: int = 1_000_000) -> None:
    rng = np.random.default_rng(1)
    print("\n| queue | busy | mean wait, simulated | by the closed form | ratio |\n|---|--:|--:|--:|--:|")
    for busy in (0.3, 0.7, 0.9):
        at = np.cumsum(rng.exponential(1 / busy, count))
        wait = float(np.mean(one_server(at, np.ones(count)) - at - 1))
        print(_row("M/D/1", busy, wait, md1_wait(busy, 1.0)))
    places = rng.integers(0, 50, count)
    at = np.cumsum(rng.exponential(1 / (0.7 * 50), count))
    wait = float(np.mean(at_places(at, np.ones(count), places) - at - 1))
    print(_row("50 of M/D/1", 0.7, wait, md1_wait(0.7, 1.0)))
    for busy in (0.5, 0.9):
        few = count // 4
        at = np.cumsum(rng.exponential(1 / (busy * 8), few))
        service = rng.exponential(1.0, few)
        wait = float(np.mean(servers(at, service, 8) - at - service))
        print(_row("M/M/8", busy, wait, mmc_wait(busy, 1.0, 8)))


def _row(name: str, busy: float, found: float, known: float) -> str:
    return f"| {name} | {busy:.0%} | {found:.4f} | {known:.4f} | {found / known:.3f} |"


def own_scheduler(seconds: float = 120.0) -> None:
    """Raises ``PlanError``."""
    machine = roofline()
    print(
        "\n| requests/s at one GPU | TTFT p50 | p95 | p99 | the answer p50 | p95 |\n|--:|--:|--:|--:|--:|--:|"
    )
    with Simulator() as simulator:
        for rate in (4, 10, 16.7, 22, 25):
            rng = np.random.default_rng(1)
            asked = draw(rate, seconds, rng, shapes=lengths(TRACE))
            first, last = served_alone(machine, asked.at, asked.prompt, asked.answer)
            one = candidate(
                read_model(LLAMA_8B),
                read_chips(None)["h100"],
                1,
                PRECISIONS["fp8"],
                serving=Serving(),
                reached=Efficiency(),
                longest=int((asked.prompt + asked.answer).max()),
                simulator=simulator,
            )
            if isinstance(one, Misfit):
                raise SystemExit(one.reason)
            arrivals = [
                Arrival(at, prompt, answer)
                for at, prompt, answer in zip(
                    asked.at.tolist(), asked.prompt.tolist(), asked.answer.tolist(), strict=True
                )
            ]
            told = simulator.run(arrivals, 512, one.machine, one.clock.told())
            cells = [
                f"{np.percentile(mine, share) * 1000:,.0f} / {np.percentile(theirs, share) * 1000:,.0f} ms"
                for mine, theirs, percentiles in (
                    (first - asked.at, told["ttft"], (50, 95, 99)),
                    (last - asked.at, told["e2e"], (50, 95)),
                )
                for share in percentiles
            ]
            print(f"| {rate} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    closed_forms()
    own_scheduler()
