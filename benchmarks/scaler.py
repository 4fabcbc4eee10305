"""Engine hours of a week of traffic, and requests that wait too long: by reactive scaling, and by a forecast.

    python -m benchmarks.scaler [--weeks 3] [--seed 1] [--peak 48] [--load 600] [--jobs]

A simulation, second by second. Arrivals are Poisson at a rate with the shape of office hours in two regions, quieter at
weekends, with noise that lasts (an autoregressive process with a half-life of 20 minutes), and a quarter of an hour of
1.6 times as much at a random time of each day. With ``--jobs`` two jobs are on a schedule, too: on weekdays at 6:00 and
13:30 half the peak comes on top for 40 minutes. Answers take a time that is drawn from the Azure conversation trace's
output lengths at 25 ms a token; an engine answers so many at once, the others wait. The autoscaler is KEDA's and a
HorizontalPodAutoscaler's defaults: a look every 15 s, more at once, fewer only by the most that was wanted in the last
300 s. The first weeks teach the forecast; the last one counts.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gateway.scaler.history import History, Lead

SECONDS_A_TOKEN = 0.025
AT_ONCE = 16
"""Answers of one engine."""
SLO = 2.0
"""Seconds that a request may wait for a place."""
SYNC, STABLE = 15, 300
DAY = 86_400
BEGAN = 1_800_000_000 // (7 * DAY) * 7 * DAY
MOST = 64


def service_seconds(trace: Path) -> np.ndarray:
    with trace.open(newline="") as file:
        tokens = [int(row["GeneratedTokens"]) for row in csv.DictReader(file)]
    return np.maximum(1, np.round(np.asarray(tokens) * SECONDS_A_TOKEN)).astype(np.int64)


def rates(weeks: int, peak: float, chance: np.random.Generator, *, jobs: bool) -> np.ndarray:
    """Requests a second, for each second."""
    seconds = np.arange(weeks * 7 * DAY)
    hour = seconds % DAY / 3600
    office = np.zeros(len(seconds))
    for noon, width, weight in ((11.0, 2.5, 1.0), (19.0, 2.5, 0.6)):
        office += weight * np.exp(-0.5 * ((hour - noon + 12) % 24 - 12) ** 2 / width**2)
    weekend = np.where(seconds // DAY % 7 >= 5, 0.3, 1.0)
    base = peak * (0.05 + 0.95 * office / office.max()) * weekend
    minutes = len(seconds) // 60
    noise, keep = np.zeros(minutes), 0.5 ** (1 / 20)
    for minute, shock in enumerate(chance.normal(0, 0.15 * math.sqrt(1 - keep**2), minutes)):
        noise[minute] = keep * noise[minute - 1] + shock
    rate = base * np.exp(np.repeat(noise, 60))
    if jobs:
        at = seconds % DAY
        on = ((at - 6 * 3600) % DAY < 2400) | ((at - 13.5 * 3600) % DAY < 2400)
        rate = rate + np.where(on & (seconds // DAY % 7 < 5), 0.5 * peak, 0.0)
    for day in range(weeks * 7):
        surge = day * DAY + int(chance.integers(DAY))
        rate[surge : surge + 900] *= 1.6
    return np.asarray(rate)


@dataclass
class Engines:
    """Those that serve, and those that load: when each is ready."""

    load: int
    ready: int = 1
    loading: list[int] = field(default_factory=list)

    def scale(self, now: int, wanted: int) -> None:
        for _ in range(wanted - self.ready - len(self.loading)):
            self.loading.append(now + self.load)
        while self.ready + len(self.loading) > max(1, wanted):
            if self.loading:
                self.loading.pop()
            else:
                self.ready -= 1

    def pass_on(self, now: int) -> None:
        while self.loading and self.loading[0] <= now:
            self.loading.pop(0)
            self.ready += 1


Asks = Callable[[int, int, int, Engines], float]
"""Engines that are wanted, of the second, those in flight and those waiting."""


def waiting_only(threshold: float) -> Asks:
    """KEDA's Prometheus scaler on requests that wait, as this project's chart had it."""
    return lambda now, flying, waiting, engines: max(
        engines.ready if flying > 0.5 * AT_ONCE * engines.ready else 0, waiting / threshold
    )


def demand_now(per_engine: float) -> Asks:
    return lambda now, flying, waiting, engines: (flying + waiting) / per_engine


def foreseen(per_engine: float, load: int) -> Asks:
    """What ``gateway/scaler/watcher.py`` says, on this clock."""
    history, lead = History(), Lead(load)

    def asks(now: int, flying: int, waiting: int, engines: Engines) -> float:
        at, demand = float(BEGAN + now), float(flying + waiting)
        history.add(at, demand)
        value = max(demand, history.forecast(at, lead.seconds) or 0.0)
        lead.note(at, engines.ready, math.ceil(value / per_engine))
        return value / per_engine

    return asks


@dataclass
class Result:
    hours: float
    requests: int
    late: int
    worst: float


def run(arrivals: np.ndarray, services: np.ndarray, asks: Asks, load: int, seed: int) -> Result:
    """Over all seconds; what counts are those of the last week."""
    chance = np.random.default_rng(seed)
    engines, queue = Engines(load), deque[int]()
    ends = np.zeros(len(arrivals) + int(services.max()) + 2, dtype=np.int64)
    wanted_before: deque[tuple[int, int]] = deque()
    counted = len(arrivals) - 7 * DAY
    flying, busy, late, worst, requests = 0, 0, 0, 0, 0
    for now in range(len(arrivals)):
        engines.pass_on(now)
        flying -= int(ends[now])
        came = int(arrivals[now])
        queue.extend([now] * came)
        begin = min(len(queue), max(0, AT_ONCE * engines.ready - flying))
        if begin:
            for seconds in chance.choice(services, begin).tolist():
                ends[now + seconds] += 1
                waited = now - queue.popleft()
                if now >= counted:
                    late += waited > SLO
                    worst = max(worst, waited)
            flying += begin
        if now % SYNC == 0:
            wanted = min(MOST, max(1, math.ceil(asks(now, flying, len(queue), engines) - 0.1)))
            while wanted_before and wanted_before[0][0] <= now - STABLE:
                wanted_before.popleft()
            wanted_before.append((now, wanted))
            most = max(one for _, one in wanted_before)
            # More at once; fewer as soon as nothing in the window wanted more.
            engines.scale(now, wanted if wanted > engines.ready + len(engines.loading) else most)
        if now >= counted:
            busy += engines.ready + len(engines.loading)
            requests += came
    return Result(busy / 3600, requests, late, float(worst))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, default=Path(__file__).parents[2] / "shared/data/traces")
    parser.add_argument("--weeks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--peak", type=float, default=48.0, help="requests a second")
    parser.add_argument("--load", type=int, default=600, help="seconds until a new engine serves")
    parser.add_argument("--jobs", action="store_true", help="with jobs on a schedule")
    options = parser.parse_args(argv)
    chance = np.random.default_rng(options.seed)
    services = service_seconds(options.traces / "azure_conv.csv")
    arrivals = chance.poisson(rates(options.weeks, options.peak, chance, jobs=options.jobs))
    needed = arrivals[-7 * DAY :].sum() * services.mean() / AT_ONCE / 3600
    print(
        f"{arrivals[-7 * DAY :].sum():,} requests in the week; {needed:.0f} engine hours if each were full\n"
    )
    print("| engines by | engine hours | requests that waited above 2 s | worst wait |")
    print("|---|---|---|---|")
    fixed = math.ceil(options.peak * 1.6 * services.mean() / AT_ONCE)
    for name, asks in (
        (f"none: {fixed} always", lambda *_: float(fixed)),
        ("requests that wait, 8 an engine", waiting_only(8.0)),
        *((f"demand now, {places:g} of 16 places", demand_now(places)) for places in (14.0, 12.0, 10.0)),
        *(
            (f"the scaler, {places:g} of 16 places", foreseen(places, options.load))
            for places in (14.0, 12.0)
        ),
    ):
        found = run(arrivals, services, asks, options.load, options.seed)
        print(
            f"| {name} | {found.hours:,.0f} | {found.late / found.requests:.2%} | {found.worst:,.0f} s |",
            flush=True,
        )


if __name__ == "__main__":
    main()
