"""A/B experiments over made-up users: how many find a difference that is none, and how soon one is found that is there.

    python -m benchmarks.experiments [--experiments 1000] [--only false|found] [--activity 1.0]

Arms and intervals are the gateway's own: each user has the arm that the assignment gives him, is of his own kind
(``spread``), and asks as often as he does (a log-normal activity: one user in a hundred makes a tenth of all requests).
After every 200 requests somebody looks, and stops at the first finding.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gateway.experiments.assignment import arm_of
from gateway.experiments.confidence import LEAST, Sums, half_width, of_difference
from gateway.experiments.sample_ratio import is_mismatch

LOOK = 200
"""Requests."""
ACTIVITY = 1.0
"""Of users, the standard deviation of its logarithm; with 2 one in a hundred makes two fifths of the requests."""
Z = 1.959964
ALPHA = 0.05


@dataclass(frozen=True)
class Kind:
    """What a request is worth: a share of events, a score, or a log-normal cost."""

    name: str
    what: str
    control: float
    new: float
    spread: float
    """How much users differ: of events and scores the correlation of two requests of one user; of costs the standard
    deviation of the logarithm between users."""

    @property
    def of_share(self) -> bool:
        return self.what == "events"

    def of_users(self, draw: np.random.Generator, arms: np.ndarray) -> np.ndarray:
        mean = np.where(arms, self.new, self.control)
        if self.what == "events":
            if not self.spread:
                return mean
            size = 1 / self.spread - 1
            return draw.beta(mean * size, (1 - mean) * size)
        if self.what == "scores":
            return np.clip(mean + draw.normal(0, 0.25 * math.sqrt(self.spread), len(arms)), 0, 1)
        return mean * np.exp(draw.normal(0, self.spread, len(arms)) - self.spread**2 / 2)

    def requests(self, draw: np.random.Generator, of_users: np.ndarray) -> np.ndarray:
        if self.what == "events":
            return (draw.random(len(of_users)) < of_users).astype(float)
        if self.what == "scores":
            return np.clip(of_users + draw.normal(0, 0.25 * math.sqrt(1 - self.spread), len(of_users)), 0, 1)
        return of_users * draw.lognormal(-0.32, 0.8, len(of_users))


@dataclass
class Looked:
    """When each way of looking finds a difference first, in requests; None: never."""

    ours: int | None = None
    requests_alone: int | None = None
    """The same intervals, as if each request were somebody else's."""
    users_once: int | None = None
    """Over users, but for one look."""
    naive: int | None = None
    """The textbook's: for one look, over requests."""
    mismatch: bool = False
    users: int = 0
    """That had come by the time of ours."""
    covered: bool = True
    """The true difference was within our interval at every look."""


def sums_of(count: np.ndarray, total: np.ndarray) -> Sums:
    return Sums(
        int((count > 0).sum()),
        float(count.sum()),
        float(total.sum()),
        float((count**2).sum()),
        float((total**2).sum()),
        float((count * total).sum()),
    )


def as_requests(values: tuple[float, float, float]) -> Sums:
    """Each request as a user of its own, by their number, sum and sum of squares."""
    count, total, squares = values
    return Sums(int(count), count, total, count, squares, total)


def experiment(kind: Kind, seed: int, *, users: int, requests: int, spread: float = ACTIVITY) -> Looked:
    draw = np.random.default_rng(seed)
    name = f"{kind.name} {seed}"
    arms = np.array(
        [arm_of(name, one.to_bytes(4, "big"), {"control": 1.0, "new": 1.0}) == "new" for one in range(users)]
    )
    activity = draw.lognormal(0, spread, users)
    mine = kind.of_users(draw, arms)
    asked = draw.choice(users, requests, p=activity / activity.sum())
    values = kind.requests(draw, mine[asked])
    count, total = np.zeros(users), np.zeros(users)
    squares = np.zeros(2)
    looked = Looked()
    truth = kind.new - kind.control
    for start in range(0, requests, LOOK):
        chunk, seen = asked[start : start + LOOK], values[start : start + LOOK]
        np.add.at(count, chunk, 1)
        np.add.at(total, chunk, seen)
        for arm in (0, 1):
            squares[arm] += float((seen[arms[chunk] == bool(arm)] ** 2).sum())
        control, new = (sums_of(count[arms == arm], total[arms == arm]) for arm in (False, True))
        look(kind, looked, control, new, squares, start + LOOK)
        counted = {"control": control.units, "new": new.units}
        looked.mismatch |= is_mismatch(counted, {"control": 1.0, "new": 1.0})
        between = of_difference(new, control, ALPHA, of_share=kind.of_share)
        if between is not None:
            looked.covered &= between.low <= truth <= between.high
        if looked.ours is not None and truth:
            break
    return looked


def look(kind: Kind, looked: Looked, control: Sums, new: Sums, squares: np.ndarray, requests: int) -> None:
    between = of_difference(new, control, ALPHA, of_share=kind.of_share)
    if between is None:
        return
    if looked.ours is None and not between.low <= 0 <= between.high:
        looked.ours, looked.users = requests, control.units + new.units
    assert control.mean is not None and new.mean is not None
    difference = abs(new.mean - control.mean)
    clustered = sum(one.variance(of_share=kind.of_share) for one in (control, new))
    alone = [as_requests((one.count, one.total, squares[at])) for at, one in enumerate((control, new))]
    plain = sum(one.variance(of_share=kind.of_share) for one in alone)
    if looked.users_once is None and difference > Z * math.sqrt(clustered):
        looked.users_once = requests
    if looked.naive is None and difference > Z * math.sqrt(plain):
        looked.naive = requests
    if looked.requests_alone is None and difference > half_width(plain, control.count + new.count, ALPHA):
        looked.requests_alone = requests


SAME = (
    Kind("errors 5 %, all users alike", "events", 0.05, 0.05, 0.0),
    Kind("errors 5 %, users differ", "events", 0.05, 0.05, 0.1),
    Kind("errors 1 %, users differ", "events", 0.01, 0.01, 0.1),
    Kind("score 0.7, users differ", "scores", 0.7, 0.7, 0.3),
    Kind("cost, log-normal, users differ", "costs", 0.01, 0.01, 0.8),
)
APART = (
    Kind("errors 8 % instead of 5 %", "events", 0.05, 0.08, 0.1),
    Kind("errors 8 % instead of 5 %, all users alike", "events", 0.05, 0.08, 0.0),
    Kind("score 0.75 instead of 0.7", "scores", 0.7, 0.75, 0.3),
    Kind("cost a fifth higher", "costs", 0.01, 0.012, 0.8),
)


def without_difference(experiments: int, spread: float) -> Iterator[str]:
    ways = " | ".join(("ours", "the same by request", "one look, by user", "one look, by request"))
    yield f"| {experiments} without a difference | {ways} | interval left the truth | false mismatches |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for kind in SAME:
        found = [
            experiment(kind, seed, users=4000, requests=20_000, spread=spread) for seed in range(experiments)
        ]
        shares = [
            sum(getattr(one, name) is not None for one in found) / len(found)
            for name in ("ours", "requests_alone", "users_once", "naive")
        ]
        left = sum(not one.covered for one in found) / len(found)
        mismatches = sum(one.mismatch for one in found)
        told = " | ".join(f"{share:.1%}" for share in (*shares, left))
        yield f"| {kind.name} | {told} | {mismatches} |"


def with_a_difference(experiments: int, spread: float) -> Iterator[str]:
    yield f"| a difference, {experiments} experiments | found | requests, median | 95 % within | users, median |"
    yield "|---|--:|--:|--:|--:|"
    for kind in APART:
        found = [
            experiment(kind, seed, users=40_000, requests=200_000, spread=spread)
            for seed in range(experiments)
        ]
        seen = sorted(one.ours for one in found if one.ours is not None)
        users = sorted(one.users for one in found if one.ours is not None)
        median, late = seen[len(seen) // 2], seen[min(len(seen) - 1, int(0.95 * len(found)))]
        yield f"| {kind.name} | {len(seen)} of {len(found)} | {median:,} | {late:,} | {users[len(users) // 2]:,} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--only", choices=("false", "found"))
    parser.add_argument("--activity", type=float, default=ACTIVITY)
    arguments = parser.parse_args()
    print(f"at least {LEAST} users in each arm before anything is told\n")
    if arguments.only != "found":
        for line in without_difference(arguments.experiments, arguments.activity):
            print(line, flush=True)
    if arguments.only != "false":
        print()
        for line in with_a_difference(max(1, arguments.experiments // 10), arguments.activity):
            print(line, flush=True)


if __name__ == "__main__":
    main()
