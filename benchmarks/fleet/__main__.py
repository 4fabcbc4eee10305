"""A fleet of up to 1,000 engines, simulated with measured costs: what is full first, and what then (docs/scale.md).

    python -m benchmarks.fleet                     all of docs/scale.md's tables, some minutes on one core
    python -m benchmarks.fleet bottlenecks         … or some of: bottlenecks, latencies, choosing, failures, budgets
    python -m benchmarks.fleet plots               its pictures, in docs/images
    python -m benchmarks.fleet measure [--quick]   the costs, anew
    python -m benchmarks.fleet real                the simulation beside two gateways, Redis and three servers, here
    python -m benchmarks.fleet check               the simulation beside closed forms and the engine's own scheduler

GPUs are rooflines of ``tollgate plan`` (``--chip``, ``--model``, ``--precision``): bounds, not measurements.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from benchmarks.fleet import scenarios
from benchmarks.fleet.machine import LLAMA_8B, roofline
from gateway.lab.plan.errors import PlanError

OTHERS = ("plots", "measure", "check", "real")
TABLES = ("bottlenecks", "latencies", "choosing", "failures", "budgets")


def measure(requests: int) -> None:
    from benchmarks.fleet.measure import engine, gateways, ledger, redis, workers

    gateways.gateways(requests)
    engine.engine(requests)
    if (program := shutil.which("redis-server")) is None:
        print("redis-server is not on PATH: its rows are left out")
    else:
        with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
            asyncio.run(redis.redis(Path(folder), program, 5 * requests))
        workers.workers(program, requests / 250)
    ledger.ledger(requests / 500)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="*", metavar="TABLE", help=", ".join((*TABLES, *OTHERS)))
    parser.add_argument("--seconds", type=float, default=60.0, help="of traffic (60)")
    parser.add_argument("--chip", default="h100", help="of gateway/lab/plan/chips.yaml (h100)")
    parser.add_argument("--model", default=LLAMA_8B, help="as of tollgate plan")
    parser.add_argument("--precision", default="fp8", help="bf16, fp8, int4 … (fp8)")
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    given = parser.parse_args()
    chosen = given.what or TABLES
    if unknown := [word for word in chosen if word not in (*TABLES, *OTHERS)]:
        parser.error(f"{', '.join(unknown)}: no such table; there are {', '.join((*TABLES, *OTHERS))}")
    if "measure" in chosen:
        measure(600 if given.quick else 2000)
        return
    if "real" in chosen:
        from benchmarks.fleet import real

        real.main(5.0 if given.quick else 15.0)
        return
    if "check" in chosen:
        from benchmarks.fleet import check

        check.main()
        return
    try:
        machine = roofline(given.chip, given.model, given.precision)
    except PlanError as error:
        parser.error(str(error))
    load = scenarios.steady(1)
    if (most := machine.most(load.prompt, load.answer)) < scenarios.RATE:
        parser.error(
            f"{machine.name} bears {most:.1f} requests a second of these at most, and each GPU is asked for "
            f"{scenarios.RATE:.1f}: take a faster --chip, or a smaller --model"
        )
    seconds = 10.0 if given.quick else given.seconds
    if "plots" in chosen:
        for path in scenarios.pictures(machine, min(30.0, seconds)):
            print(path)
        return
    if "bottlenecks" in chosen:
        scenarios.bottlenecks(machine)
    if "latencies" in chosen:
        scenarios.latencies(machine, seconds)
    if "choosing" in chosen:
        list(scenarios.knowledge(machine, seconds))
    if "failures" in chosen:
        scenarios.failures(machine, max(30.0, seconds))
    if "budgets" in chosen:
        scenarios.budgets()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
