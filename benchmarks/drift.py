"""Drifts in made-up traffic: how soon each is found, and how often one is told that is none.

    python -m benchmarks.drift [--months 8] [--runs 6] [--requests 1000]

Eight weeks of one model and route, and then a month: requests by the hour and the day of the week, lengths as in
Azure's trace of conversations, all with noise that real traffic has and independent draws have not: whole hours are
off by some per cent, one like the other before it (a first-order autoregression), and now and then a caller sends
many alike. The sketches, the tests and their bars are the gateway's own.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from gateway.drift.bars import HOURS, Bars
from gateway.drift.detector import Least, Usual, judge
from gateway.drift.hour_sketch import HourSketch, merged
from gateway.drift.measures import MEASURES
from gateway.experiments.sketch import ERROR
from gateway.policy.schema import DriftSettings
from gateway.sidecar.api import PROJECTION_STEP

TRACE = Path(__file__).parents[2] / "shared" / "data" / "traces" / "azure_conv.csv"
LEARNED, MONTH = 8 * 168, 730
"""Hours before a drift begins, and of a month without one."""
LOG_GAMMA = math.log((1 + ERROR) / (1 - ERROR))
LANGUAGES = ("en", "de", "fr", "es", "pt", "latin", "zh", "none")
MIX = (0.62, 0.08, 0.05, 0.05, 0.05, 0.1, 0.03, 0.02)
Random = np.random.Generator


@dataclass(frozen=True)
class Traffic:
    """What may drift; factors are of what is usual."""

    length: float = 1.0
    latency: float = 1.0
    cost: float = 1.0
    refusals: float = 0.01
    portuguese: float = 0.05
    json_failures: float = 0.02
    topic: float = 0.0
    """By how much the mean embedding moves along one direction, of a standard deviation."""


Drift = Callable[[Traffic, int], Traffic]
"""What traffic is, so many hours after it began to drift."""
DRIFTS: dict[str, tuple[Drift, tuple[str, ...]]] = {
    "answers longer × 1.2": (
        lambda usual, hour: replace(usual, length=1.2),
        ("completion_tokens", "seconds", "cost"),
    ),
    "latency + 20 %": (
        lambda usual, hour: replace(usual, latency=1.2),
        ("first_token", "inter_token", "seconds"),
    ),
    "refusals 1 → 2 %": (lambda usual, hour: replace(usual, refusals=0.02), ("refusals",)),
    "a language 5 → 15 %": (lambda usual, hour: replace(usual, portuguese=0.15), ("languages",)),
    "cost a request + 15 %": (lambda usual, hour: replace(usual, cost=1.15), ("cost",)),
    "JSON failures 2 → 4 %": (lambda usual, hour: replace(usual, json_failures=0.04), ("json_failures",)),
    "prompts of other topics": (lambda usual, hour: replace(usual, topic=0.5), ("embedding_0",)),
    "answers longer by 1 % a day": (
        lambda usual, hour: replace(usual, length=1.01 ** (hour / 24)),
        ("completion_tokens", "seconds", "cost"),
    ),
    "latency up by 1 % a day": (
        lambda usual, hour: replace(usual, latency=1.01 ** (hour / 24)),
        ("first_token", "inter_token", "seconds"),
    ),
}


class Weather:
    """By how much an hour is off, as a factor: an autoregression with a standard deviation of ``spread``."""

    def __init__(self, draw: Random, spread: float, correlated: float = 0.8) -> None:
        self._draw, self._correlated = draw, correlated
        self._step = spread * math.sqrt(1 - correlated**2)
        self._now = draw.normal(0, spread)

    def next(self) -> float:
        self._now = self._correlated * self._now + self._draw.normal(0, self._step)
        return math.exp(self._now)


class Site:
    """Makes hours of one model and route. ``requests`` of a usual hour."""

    def __init__(self, seed: int, requests: int, lengths: np.ndarray) -> None:
        self._draw = draw = np.random.default_rng(seed)
        self._requests = requests
        self._lengths = lengths
        self._length, self._latency = Weather(draw, 0.03), Weather(draw, 0.05)
        self._refusals, self._language = Weather(draw, 0.1), Weather(draw, 0.1)

    def hour(self, at: int, traffic: Traffic) -> HourSketch:
        draw = self._draw
        day, hour = at // 24 % 7, at % 24
        busy = (0.55 + 0.45 * math.sin((hour - 8) / 24 * 2 * math.pi)) * (0.6 if day >= 5 else 1.0)
        n = int(draw.poisson(max(1.0, self._requests * busy * float(draw.lognormal(0, 0.1)))))
        sketch = HourSketch()
        if not n:
            return sketch
        lengths = self._lengths[draw.integers(0, len(self._lengths), n)]
        # Nights and weekends ask for other things: what is compared with is the same hour of the week.
        usual = (1.15 if hour < 7 else 1.0) * (1.1 if day >= 5 else 1.0)
        prompts = lengths[:, 0] * usual * self._length.next()
        answers = lengths[:, 1] * traffic.length * self._length.next() * draw.lognormal(0, 0.1, n)
        if draw.random() < 0.01:  # one caller's batch of a like
            some = draw.random(n) < 0.15
            prompts[some], answers[some] = 3000, 60
        slow = self._latency.next() * (1 + 0.5 * busy) * traffic.latency
        first = draw.lognormal(-0.9, 0.5, n) * slow
        inter = draw.lognormal(-4.0, 0.25, n) * slow
        seconds = first + inter * answers
        cost = (prompts * 0.5 + answers * 2.0) * 1000 * traffic.cost
        mix = np.array(MIX) * [1, 1, 1, 1, traffic.portuguese / 0.05, 1, 1, 1]
        mix[1] *= self._language.next()
        _numbers(sketch, "prompt_tokens", np.maximum(prompts, 1).round())
        _numbers(sketch, "completion_tokens", np.maximum(answers, 1).round())
        _numbers(sketch, "first_token", first)
        _numbers(sketch, "inter_token", inter)
        _numbers(sketch, "seconds", seconds)
        _numbers(sketch, "cost", cost)
        self._share(sketch, "refusals", n, traffic.refusals * self._refusals.next())
        self._share(sketch, "json_failures", n // 4, traffic.json_failures * self._refusals.next())
        counts = draw.multinomial(n, mix / mix.sum())
        sketch.bins["languages"] = Counter({k: int(v) for k, v in zip(LANGUAGES, counts, strict=True) if v})
        places = draw.normal(0, 1 / math.sqrt(384), (n, 8))
        places[:, 0] += traffic.topic / math.sqrt(384)
        for number in range(8):
            _count(sketch, f"embedding_{number}", np.rint(places[:, number] / PROJECTION_STEP))
        return sketch

    def _share(self, sketch: HourSketch, measure: str, n: int, rate: float) -> None:
        yes = int(self._draw.binomial(n, min(rate, 1.0))) if n else 0
        sketch.bins[measure] = Counter({1: yes, 0: n - yes})


def _numbers(sketch: HourSketch, measure: str, values: np.ndarray) -> None:
    _count(sketch, measure, np.ceil(np.log(values) / LOG_GAMMA))


def _count(sketch: HourSketch, measure: str, bins: np.ndarray) -> None:
    places, counts = np.unique(bins.astype(int), return_counts=True)
    sketch.bins[measure] = Counter(dict(zip(places.tolist(), counts.tolist(), strict=True)))


@dataclass(frozen=True)
class Told:
    hour: int
    """From the drift's beginning; before it where this is negative."""
    measure: str
    by: str


def watched(
    site: Site, drift: Drift | None, hours: int, settings: DriftSettings, *, begins: int = LEARNED
) -> list[Told]:
    """What is told of one site, which has the budget of false alarms for itself. ``begins``: the drift's first hour."""
    past: list[HourSketch] = []
    known: dict[str, Usual] = {}
    told: list[Told] = []
    least = Least(settings.least_requests, settings.least_psi)
    bars = Bars.of(settings.false_alarms_per_month, len(MEASURES))
    for at in range(begins + hours):
        since = at - begins
        traffic = Traffic() if drift is None or since < 0 else drift(Traffic(), since)
        now = site.hour(at, traffic)
        weeks = [past[at - 168 * back] for back in range(1, 5) if at >= 168 * back]
        past.append(now)
        if len(weeks) < 2:
            continue
        for measure, kind in MEASURES.items():
            usual = known.setdefault(measure, Usual())
            before = merged(week.of(measure) for week in weeks)
            judged = judge(kind, at + 1, now.of(measure), before, usual, bars, least)
            if judged is not None and judged.change == "found":
                told.append(Told(since, measure, usual.why))
    return told


def lengths(file: Path) -> np.ndarray:
    """Prompt and answer tokens of a real service; drawn where its trace is not here."""
    if not file.is_file():
        draw = np.random.default_rng(0)
        return np.stack([draw.lognormal(6.5, 1.0, 20_000), draw.lognormal(5.0, 0.9, 20_000)], axis=1)
    with file.open(encoding="utf-8") as lines:
        return (
            np.array(
                [
                    (float(row["ContextTokens"]), float(row["GeneratedTokens"]))
                    for row in csv.DictReader(lines)
                ]
            )
            + 1e-9
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--months", type=int, default=8, help="sites without a drift, of two months each (8)")
    parser.add_argument("--runs", type=int, default=6, help="of each drift (6)")
    parser.add_argument("--requests", type=int, default=1000, help="of a busy hour (1000)")
    parser.add_argument("--trace", type=Path, default=TRACE, help="Azure's, for lengths (drawn without it)")
    arguments = parser.parse_args()
    settings, real = DriftSettings(), lengths(arguments.trace)
    print(f"{arguments.requests} requests an hour, a budget of {settings.false_alarms_per_month:g} a month")
    quiet = [
        watched(Site(seed, arguments.requests, real), None, MONTH, settings)
        for seed in range(arguments.months)
    ]
    false = [one for site in quiet for one in site]
    hours = arguments.months * (MONTH + LEARNED - 4 * 168)
    print(
        f"false alarms: {len(false)} in {hours / HOURS:.1f} months, {len(false) * HOURS / hours:.2f} a month"
    )
    print("  ", Counter((one.measure, one.by) for one in false).most_common())
    print(f"{'DRIFT':<30}{'FOUND':>8}{'MEDIAN':>9}{'90 %':>9}  BY")
    for name, (drift, measures) in DRIFTS.items():
        delays, by = delays_of(drift, measures, arguments.runs, arguments.requests, settings, real)
        found = sorted(delays)
        half = f"{median(found):.0f} h" if found else "-"
        most = f"{found[math.ceil(0.9 * len(found)) - 1]:.0f} h" if found else "-"
        print(f"{name:<30}{f'{len(found)}/{arguments.runs}':>8}{half:>9}{most:>9}  {by}")


def delays_of(
    drift: Drift,
    measures: Sequence[str],
    runs: int,
    requests: int,
    settings: DriftSettings,
    real: np.ndarray,
) -> tuple[list[int], str]:
    delays, by = [], Counter[str]()
    for seed in range(runs):
        told = watched(Site(1000 + seed, requests, real), drift, 14 * 24, settings, begins=LEARNED + 5 * seed)
        first = next((one for one in told if one.hour >= 0 and one.measure in measures), None)
        if first is not None:
            delays.append(first.hour + 1)
            by[f"{first.measure} ({first.by})"] += 1
    return delays, ", ".join(f"{name} {count}" for name, count in by.most_common(3))


if __name__ == "__main__":
    main()
