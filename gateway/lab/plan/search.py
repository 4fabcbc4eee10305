"""The cheapest way that keeps the targets: bounds by arithmetic first, then simulations of what is left.

A candidate's fewest replicas follow from its capacity, which no schedule exceeds. Candidates are tried by the cost of
these, and one that could not be cheaper than what was found is left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.lab.plan.candidate import Candidate, Misfit
from gateway.lab.plan.simulator import Simulator
from gateway.lab.plan.trial import Trial, attempt, requests_for
from gateway.lab.plan.workload import Workload

MOST_REPLICAS = 4096
_TRIES = 4
"""Times that the fewest replicas are doubled before a candidate is given up."""
PATIENCE = 45.0
"""Seconds after which nothing more is simulated."""


@dataclass(frozen=True)
class Option:
    """A candidate that keeps the targets with ``found.replicas``, and not with one fewer."""

    found: Trial
    below: Trial | None
    """With one replica fewer, where that was simulated; ``None``: arithmetic rules it out."""

    @property
    def usd_per_month(self) -> float:
        return self.found.replicas * self.found.candidate.usd_per_month

    def binds(self, wanted: float) -> str:
        """What keeps it from doing with one replica fewer."""
        found = self.found
        if found.replicas == 1:
            return f"one replica is the fewest; of its busy time most is {found.limit}"
        if self.below is None:
            return f"throughput: {found.limit}"
        worst = min(self.below.kept, key=self.below.kept.__getitem__, default="")
        kept = self.below.kept.get(worst, self.below.share)
        share = f"fewer than {wanted:.0%}" if self.below.stopped else f"{kept:.0%}"
        few = f"{self.below.replicas} replica{'s' if self.below.replicas > 1 else ''}"
        return f"{worst}: with {few} {share} keep it; {self.below.limit}"


@dataclass
class Outcome:
    options: list[Option] = field(default_factory=list)
    """The cheapest first."""
    misfits: list[Misfit] = field(default_factory=list)
    dearer: list[tuple[str, float]] = field(default_factory=list)
    """And the dollars a month that each costs at least."""
    untried: list[tuple[str, float]] = field(default_factory=list)
    """The same, where time was up."""


def search(
    candidates: Sequence[Candidate],
    workload: Workload,
    bounds: Mapping[str, float],
    wanted: float,
    simulator: Simulator,
    *,
    keep: int = 3,
    patience: float = PATIENCE,
    progress: Callable[[float, str], None] = lambda share, text: None,
) -> Outcome:
    """``bounds``: targets in seconds, which a share of ``wanted`` of the requests is to keep. ``keep``: how many
    options to look for."""
    outcome, until = Outcome(), time.monotonic() + patience
    hits = workload.hits
    sample = requests_for(workload)
    bounded: list[tuple[float, float, int, Candidate]] = []
    for candidate in candidates:
        if reason := _hopeless(candidate, workload, bounds, wanted):
            outcome.misfits.append(Misfit(candidate.name, reason))
            continue
        fewest = _fewest(candidate, workload, sample, hits, bounds.get("itl"))
        if fewest > MOST_REPLICAS:
            outcome.misfits.append(Misfit(candidate.name, f"throughput: {fewest:,} replicas at least"))
            continue
        price = candidate.usd_per_month
        bounded.append((_guess(candidate, workload, hits, bounds) * price, fewest * price, fewest, candidate))
    # Those that look cheapest come first, so that most of the others are known to be dearer by arithmetic alone.
    bounded.sort(key=lambda one: one[:2])
    for number, (_, least, fewest, candidate) in enumerate(bounded):
        best = sorted(option.usd_per_month for option in outcome.options)
        limit = best[keep - 1] if len(best) >= keep else _DEARER * best[0] if best else math.inf
        if time.monotonic() > until:
            outcome.untried.append((candidate.name, least))
            continue
        if least >= limit:
            outcome.dearer.append((candidate.name, least))
            continue
        progress(number / len(bounded), f"{candidate.name}: {simulator.runs} simulations so far")
        option = fewest_replicas(candidate, workload, bounds, wanted, simulator, fewest, limit)
        if isinstance(option, Option):
            outcome.options.append(option)
        elif option is None:
            outcome.dearer.append((candidate.name, max(least, limit)))
        else:
            outcome.misfits.append(option)
    outcome.options.sort(key=lambda option: option.usd_per_month)
    return outcome


def fewest_replicas(
    candidate: Candidate,
    workload: Workload,
    bounds: Mapping[str, float],
    wanted: float,
    simulator: Simulator,
    fewest: int,
    limit: float = math.inf,
) -> Option | Misfit | None:
    """``limit``: dollars a month from which on nobody wants it (``None`` is returned)."""

    guess = max(fewest, _guess(candidate, workload, workload.hits, bounds))
    ways = candidate.tuned(workload.mean_rate / guess, workload, bounds)

    def tried(replicas: int) -> Trial:
        """By the first way that keeps the targets, that of the last time before others; else by the best."""
        trials = []
        for way in list(ways):
            trials.append(attempt(way, workload, replicas, bounds, simulator, wanted))
            if trials[-1].met(wanted):
                ways.remove(way)
                ways.insert(0, way)
                return trials[-1]
        return max(trials, key=lambda trial: trial.share)

    low, below = fewest - 1, None
    high = fewest
    found = tried(high)
    for _ in range(_TRIES):
        if found.met(wanted):
            break
        if (high + 1) * candidate.usd_per_month >= limit:
            return None
        low, below = high, found
        high = min(MOST_REPLICAS, 2 * high, max(high + 1, _affordable(candidate, limit)))
        found = tried(high)
    if not found.met(wanted):
        if limit < math.inf:
            return None
        worst = min(found.kept, key=found.kept.__getitem__, default="")
        return Misfit(
            candidate.name,
            f"{worst}: even with {high} replicas, busy {found.busy:.0%} of the time, too few requests keep it",
        )
    while high - low > 1:
        middle = (low + high) // 2
        trial = tried(middle)
        if trial.met(wanted):
            high, found = middle, trial
        else:
            low, below = middle, trial
    return Option(found, below)


def _affordable(candidate: Candidate, limit: float) -> int:
    """The most replicas that are cheaper than ``limit``."""
    return MOST_REPLICAS if limit == math.inf else math.ceil(limit / candidate.usd_per_month) - 1


def _guess(candidate: Candidate, workload: Workload, hits: float, bounds: Mapping[str, float]) -> int:
    """Replicas that will probably do: prompts may double a step (``--max-itl-ratio``), and queues need room."""
    itl = bounds.get("itl")
    capacity, _ = candidate.capacity(workload, hits, itl and itl / 2)
    return math.ceil(workload.mean_rate / capacity / _ROOM)


def _fewest(candidate: Candidate, workload: Workload, sample: int, hits: float, itl: float | None) -> int:
    capacity, _ = candidate.capacity(workload, hits, itl)
    fewest = max(1, math.ceil(workload.mean_rate / capacity * 0.999))
    # The more replicas, the longer the stretch that a sample of each is from, and the lower its rate.
    while (
        fewest <= MOST_REPLICAS and workload.peak_rate(fewest * sample) * 0.999 > fewest * capacity * _SLACK
    ):
        fewest += max(1, fewest // 16)
    return fewest


_DEARER = 3.0
"""How many times as dear as the cheapest an option may be."""
_ROOM = 0.75
"""Share of a capacity that queues leave, for a guess."""
_SLACK = 1.1
"""By how much a stretch may be above capacity: it ends."""


def _hopeless(
    candidate: Candidate, workload: Workload, bounds: Mapping[str, float], wanted: float
) -> str | None:
    """Why no number of replicas helps."""
    clock, delay = candidate.clock, candidate.request_delay
    lengths = sorted(workload.fresh_tokens)
    context = workload.mean_prompt + workload.mean_output / 2
    for name in ("itl", "tpot"):
        gap = clock.seconds(clock.decode(1, context))
        if name in bounds and gap > bounds[name]:
            limits = clock.bounds(clock.decode(1, context))
            bound = "memory bandwidth" if limits[0][0] >= limits[0][1] else "compute"
            return f"{name}: a token takes {1000 * gap:.1f} ms with one request alone ({bound})"
    if "ttft" in bounds:
        prompt = lengths[min(len(lengths) - 1, int(wanted * len(lengths)))]
        alone = clock.seconds(clock.prefill(prompt)) + delay
        if alone > bounds["ttft"]:
            return f"ttft: a prompt of {prompt:,} new tokens takes {alone:.2f} s alone (compute)"
    return None
