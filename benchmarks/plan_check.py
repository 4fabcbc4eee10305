"""How near does ``tollgate plan`` come? Its memory and its clock beside the engine itself, on this machine's CPU.

    python -m benchmarks.plan_check MODEL.gguf [--rounds 3]

Both sides have the engine's scheduler and the same arrivals; one executes the steps, the other takes the clock's word.
The clock is calibrated by requests alone and by 4 and 16 at once, and then asked about others: 2, 8 and 12 at once with
other lengths, and arrivals at random. Seconds are those of the processor, on one thread, so that other work on the
machine counts little. Memory is compared to the byte.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from engine.config import EngineConfig
from engine.core.plan import Plan, SamplerOutput
from engine.simulation.clock import StepClock
from engine.simulation.simulation import Arrival, Machine, Simulation
from engine.weights.source import locate
from engine.worker.runner import Runner
from gateway.lab.plan.calibration import Calibration, Load, fit
from gateway.lab.plan.chips import Chip
from gateway.lab.plan.model import read_model
from gateway.lab.plan.precision import Precision, kv_layer_bytes
from gateway.lab.plan.shape import ModelShape
from gateway.lab.plan.step_clock import Efficiency, step_clock
from gateway.lab.plan.step_clock import StepClock as TimedSteps

CORE = Chip("one thread", 16e9, 30e9, {"bf16": 300e9}, 0.0)
"""About; the calibration says how much of it is reached."""
BUDGET, SEATS, LONGEST = 512, 16, 2048


class Executed(Simulation):
    """Steps are executed, and take the processor's time that they take."""

    def __init__(self, runner: Runner, arrivals: Sequence[Arrival], machine: Machine) -> None:
        super().__init__(arrivals, machine, StepClock(()))
        self._runner = runner

    def _execute(self, plan: Plan) -> SamplerOutput:
        began = time.process_time()
        sampled = self._runner.collect(self._runner.submit(plan))
        self._passed(plan, time.process_time() - began)
        return sampled


def at_once(count: int, prompt: int, output: int) -> list[Arrival]:
    return [Arrival(0.0, prompt, output) for _ in range(count)]


def at_random(rate: float, count: int, seed: int) -> list[Arrival]:
    draw, at, found = Random(seed), 0.0, []
    for _ in range(count):
        at += draw.expovariate(rate)
        found.append(Arrival(at, draw.randint(20, 300), draw.randint(8, 40)))
    return found


CALIBRATING = [(1, 40, 24), (1, 400, 24), (4, 150, 24), (16, 150, 24)]
ASKED = {
    "2 at once, 300 + 32": at_once(2, 300, 32),
    "8 at once, 60 + 40": at_once(8, 60, 40),
    "12 at once, 250 + 16": at_once(12, 250, 16),
    "2 a second, 20-300 + 8-40": at_random(2.0, 30, 1),
    "8 a second, 20-300 + 8-40": at_random(8.0, 40, 2),
}


def measured(runner: Runner, machine: Machine, load: tuple[int, int, int]) -> Load:
    found = Executed(runner, at_once(*load), machine).run()
    return Load(*load, statistics.mean(found["ttft"]), statistics.mean(found["e2e"]))


def checked_memory(shape: ModelShape, runner: Runner, block_size: int) -> int:
    """Bytes of a token's keys and values. Raises ``SystemExit`` where the engine has others."""
    attention = shape.attention
    layer = kv_layer_bytes("bf16", attention.kept, attention.head_dim, attention.latent)
    blocks = runner.cache.blocks + 1
    real = sum(tensor.nbytes for place in runner.cache._places for tensor in place.tensors)
    computed = blocks * block_size * layer * len(shape.windows) // len(runner.windows)
    if real != computed:
        raise SystemExit(f"{blocks} blocks have {real:,} bytes, and not {computed:,}")
    return layer * len(shape.windows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    shape = read_model(str(options.model))
    config = EngineConfig(
        locate(str(options.model)),
        threads=1,
        max_num_seqs=SEATS,
        max_batched_tokens=BUDGET,
        max_model_len=LONGEST,
    ).on("cpu")
    runner = Runner(config)
    runner.warm_up()
    print(
        f"{checked_memory(shape, runner, config.block_size):,} bytes of keys and values a token, as computed"
    )
    machine = Machine(
        runner.cache.blocks, SEATS, BUDGET, runner.max_model_len, config.block_size, tuple(runner.windows)
    )
    bits = 8 * (shape.stored_bytes or 2 * shape.parameters) / shape.parameters
    precision = Precision("as stored", bits)
    layer = kv_layer_bytes("bf16", shape.attention.kept, shape.attention.head_dim, shape.attention.latent)

    def clock(reached: Efficiency) -> TimedSteps:
        return step_clock(shape, CORE, 1, precision, layer, reached)

    ratios: dict[str, list[float]] = {}
    for round_number in range(options.rounds):
        loads = [measured(runner, machine, load) for load in CALIBRATING]
        found = fit(Calibration(loads, "here"), clock, BUDGET)
        print(f"round {round_number + 1}: calibrated within {found.error:.1%}: {found.reached}")
        told = StepClock.of(clock(found.reached).told())
        for name, arrivals in ASKED.items():
            real = Executed(runner, arrivals, machine).run()
            computed = Simulation(arrivals, machine, told).run()
            for what in ("ttft", "tpot", "e2e"):
                seconds = [
                    statistics.mean(row for row in one[what] if row is not None) for one in (real, computed)
                ]
                ratios.setdefault(f"{name}: {what}", []).append(seconds[1] / seconds[0])
                print(f"  {name:<28} {what:<5} executed {seconds[0]:8.3f} s, computed {seconds[1]:8.3f} s")
    print("\n| load | computed / executed, median of rounds |\n|---|--:|")
    for name, values in ratios.items():
        print(f"| {name} | {statistics.median(values):.2f} |")


if __name__ == "__main__":
    main()
