"""Roll-outs in virtual time: how many return without a reason, and how soon one returns that has one.

    python -m benchmarks.rollouts [--rollouts 1000] [--only false|found]

The keeper is the gateway's own, its state goes through bytes each minute, and only traffic and clock are made up. A
roll-out without a difference goes through all its steps; one with a difference stays at a share until it returns.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from gateway.experiments.assignment import CONTROL, NEW
from gateway.experiments.common_states import MemoryStates
from gateway.experiments.evidence import Observed
from gateway.experiments.keeper import Keeper, Told
from gateway.experiments.rollout_state import RolloutState
from gateway.experiments.scores import JUDGE
from gateway.policy.schema import Rollout

A_MINUTE = 100
"""Requests."""
ALL_GUARDS = {"errors": 1.0, "ttft_p95": 1.0, "cost": 1.0, "score": 1.0}
JUDGED = 0.1
"""The share of answers that a judge scores."""
GOOD, WORSE_POINTS, BAD = (1, 3, 10, 36, 50), (3, 7, 20, 35, 35), (10, 20, 30, 25, 15)
"""How often a judge gives one to five points, per cent: means of 0.83, 0.73 and 0.54."""


@dataclass(frozen=True)
class Arm:
    """``slower``, ``dearer``: times the control's. ``points``: how often a judge gives one to five."""

    errors: float = 0.02
    slower: float = 1.0
    dearer: float = 1.0
    points: tuple[int, ...] = GOOD

    def request(self, draw: random.Random) -> Observed:
        return Observed(
            draw.random() < self.errors,
            draw.lognormvariate(-0.7, 0.6) * self.slower,
            int(draw.lognormvariate(14.0, 0.8) * self.dearer),
        )

    def score(self, draw: random.Random) -> float:
        return draw.choices((0.0, 0.25, 0.5, 0.75, 1.0), self.points)[0]


@dataclass(frozen=True)
class Ended:
    state: RolloutState
    requests: int
    in_new: int


async def rolled_out(
    rollout: Rollout,
    control: Arm,
    new: Arm,
    *,
    seed: int,
    most: int,
    drift: Callable[[int], float] = lambda minute: 1.0,
) -> Ended:
    """To its end, or for ``most`` requests. ``drift``: times all errors, by the minute."""
    draw = random.Random(seed)
    now = [1.7e9]

    async def tell(told: Told) -> None:
        """Nobody listens."""

    keeper = Keeper(MemoryStates(), {"m": ("m", rollout)}, tell, clock=lambda: now[0])
    await keeper.look()
    count = in_new = minute = 0
    while (state := keeper.state("m")) is not None and state.status == "running" and count < most:
        times = drift(minute)
        share = state.share / 100.0
        for _ in range(A_MINUTE):
            is_new = draw.random() < share
            arm = new if is_new else control
            one = replace(arm, errors=arm.errors * times).request(draw) if times != 1.0 else arm.request(draw)
            name = NEW if is_new else CONTROL
            keeper.record("m", name, one)
            if not one.failed and draw.random() < JUDGED:
                keeper.scored("m", name, JUDGE, now[0], arm.score(draw))
            in_new += is_new
        count += A_MINUTE
        minute += 1
        now[0] += 60.0
        await keeper.look()
    final = keeper.state("m")
    if final is None:
        raise RuntimeError("the state of a roll-out in memory was lost")
    return Ended(final, count, in_new)


def a_rollout(steps: tuple[float, ...], guard: dict[str, float], *, hold: str = "30m") -> Rollout:
    given = {name: guard.get(name) for name in ALL_GUARDS}
    return Rollout.model_validate(
        {"to": {"backend": "b", "model": "x"}, "steps": steps, "hold": hold, "guard": given}
    )


def by_the_hour(minute: int) -> float:
    """An outage of everybody's in the second half hour: four times the errors."""
    return 4.0 if 30 <= minute < 60 else 1.0


async def false_returns(count: int) -> None:
    rollout = a_rollout((1.0, 5.0, 25.0, 100.0), ALL_GUARDS)
    print("| without a difference | roll-outs | returned | completed |\n|---|--:|--:|--:|")
    for name, drift in (("all the same", lambda minute: 1.0), ("an outage of both arms", by_the_hour)):
        ends = [
            (await rolled_out(rollout, Arm(), Arm(), seed=seed, most=10**6, drift=drift)).state.status
            for seed in range(count)
        ]
        print(f"| {name} | {count} | {ends.count('returned')} | {ends.count('completed')} |", flush=True)


WORSE = (
    ("errors 10 % instead of 5 %", {"errors": 1.0}, Arm(0.05), Arm(0.10)),
    ("errors 4 % instead of 2 %", {"errors": 1.0}, Arm(0.02), Arm(0.04)),
    ("errors 2 % instead of 1 %", {"errors": 1.0}, Arm(0.01), Arm(0.02)),
    ("the same, all guards", ALL_GUARDS, Arm(0.01), Arm(0.02)),
    ("every second request fails", ALL_GUARDS, Arm(), Arm(0.5)),
    ("1.5 times as slow", ALL_GUARDS, Arm(), Arm(slower=1.5)),
    ("1.5 times as dear", ALL_GUARDS, Arm(), Arm(dearer=1.5)),
    ("scores 0.73 instead of 0.83", {"score": 1.0}, Arm(), Arm(points=WORSE_POINTS)),
    ("scores 0.54 instead of 0.83", {"score": 1.0}, Arm(), Arm(points=BAD)),
    ("the same, all guards", ALL_GUARDS, Arm(), Arm(points=BAD)),
)


async def found(count: int, share: float = 5.0, most: int = 200_000) -> None:
    print(
        f"| new target, at {share:g} % of keys | found | requests, median | 95 % within | of them new, median |\n"
        "|---|--:|--:|--:|--:|"
    )
    for name, guard, control, new in WORSE:
        rollout = a_rollout((share, 100.0), guard, hold="9999d")
        ends = [await rolled_out(rollout, control, new, seed=seed, most=most) for seed in range(count)]
        returned = sorted(end.requests for end in ends if end.state.status == "returned")
        of_new = sorted(end.in_new for end in ends)
        row = [f"{returned[int(len(returned) * part)]:,}" if returned else "–" for part in (0.5, 0.95)]
        print(
            f"| {name} | {len(returned)} of {count} | {row[0]} | {row[1]} | {of_new[count // 2]:,} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--only", choices=("false", "found"))
    given = parser.parse_args()
    if given.only != "found":
        asyncio.run(false_returns(given.rollouts))
    if given.only != "false":
        asyncio.run(found(max(1, given.rollouts // 10)))


if __name__ == "__main__":
    main()
