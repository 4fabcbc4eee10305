"""How often does the queue refuse wrongly, and how often does it let in what comes to nothing? In virtual time.

    python -m benchmarks.forecasts [--seconds 40] [--samples 40] [--json FILE]

Twenty places, answers of some 60 tokens at 50 tokens/s, and one tier that waits for 2 s. Requests come at 1.3 times
what the places bear (steady), or 150 at once every 10 s (bursts). Their lengths are foreseen exactly (true), or all are
thought to be as long as the mean, while they are exponentially distributed (wide).

wrong    of those refused when they came, as their place was not foreseen to come in time: the part that would have had
         it. Each of a sample is let in after all, in a repetition of the same run.
late     of those let in: the part that waited in vain to the end of the tier's ``max_wait``.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from gateway.admission import gate
from gateway.admission.gate import Admission
from gateway.admission.pools import Pools
from gateway.admission.shedding import TierRules
from gateway.errors import Overloaded
from gateway.policy.schema import Policy
from gateway.types import Call, Candidate, ChatRequest, Principal, Receipt, TokenEstimate

PLACES, MAX_WAIT = 20, 2.0
FIRST, TOKEN, MEAN, PROMPT = 0.2, 0.02, 60, 40
CAPACITY = PLACES / (FIRST + TOKEN * MEAN)
KNOWN = 150
"""Requests before which nothing can be foreseen, as none has ended."""

POLICY = Policy.model_validate(
    {
        "version": 1,
        "backends": {
            "up": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1", "max_concurrency": PLACES}
        },
        "models": {"m": {"targets": [{"backend": "up", "model": "m"}]}},
        "tiers": {"pro": {"max_wait": "2s"}},
    }
)


@dataclass
class Run:
    refused: list[int] = field(default_factory=list)
    """Numbers of the requests, in order, that were refused when they came."""
    admitted: int = 0
    timeout_error: int = 0
    fate: str = ""
    """Of the request that was let in after all."""


def arrivals(kind: str, seconds: float, chance: random.Random) -> Iterator[float]:
    now = 0.0
    if kind == "bursts":
        while now < seconds:
            yield from (now + i / 1000 for i in range(150))
            now += 10.0
    else:
        while (now := now + chance.expovariate(1.3 * CAPACITY)) < seconds:
            yield now


def run(kind: str, caps: str, seconds: float, *, let_in: int = -1) -> Run:
    chance, now, found, tier_rules = random.Random(7), [0.0], Run(), TierRules()
    pools = Pools(clock=lambda: now[0])
    pools.update(POLICY)
    number = count()
    events: list[tuple[float, int, str, object]] = []
    for i, at in enumerate(arrivals(kind, seconds, chance)):
        length = max(1, round(chance.expovariate(1 / MEAN)))
        heapq.heappush(events, (at, next(number), "comes", (i, length)))
    waiting: dict[int, tuple[Admission, Call, int]] = {}

    def starts(i: int, admission: Admission, call: Call, length: int) -> None:
        if i == let_in:
            found.fate = "served"
        heapq.heappush(
            events, (now[0] + FIRST + TOKEN * length, next(number), "ends", (admission, call, length))
        )

    while events and not found.fate:
        now[0], _, what, who = heapq.heappop(events)
        if what == "comes":
            i, length = who  # type: ignore[misc]
            call = _call(length if caps == "true" else MEAN, now[0])
            try:
                admission = gate.admit(call, pools, tier_rules)
            except Overloaded:
                found.refused.append(i)
                if i != let_in:
                    continue
                pool = pools.of("up")
                lease = pool.acquire("pro", gate.UNLIMITED, "t", PROMPT + call.estimate.expected)  # type: ignore[union-attr]
                admission = Admission(pool, lease, now[0], lease.position, 0.0, now[0] + MAX_WAIT, 0.0)
            found.admitted += i >= KNOWN
            if admission.lease.is_granted:
                starts(i, admission, call, length)
            else:
                waiting[i] = admission, call, length
                heapq.heappush(events, (admission.expires, next(number), "is late", i))
        elif what == "ends":
            admission, call, length = who  # type: ignore[misc]
            admission.completed(call, now[0] - TOKEN * length, length + 1)
            admission.lease.correct_tokens(PROMPT + length)
            admission.lease.release()
        elif who in waiting:
            admission, call, _ = waiting[who]  # type: ignore[index]
            found.timeout_error += who >= KNOWN  # type: ignore[operator]
            found.fate = "late" if who == let_in else ""
            del waiting[who]  # type: ignore[arg-type]
            admission.learn_wait("pro")
            admission.lease.release()
        for i in [i for i, (admission, _, _) in waiting.items() if admission.lease.is_granted]:
            admission, call, length = waiting.pop(i)
            admission.learn_wait("pro")
            starts(i, admission, call, length)
    return found


def _call(expected: int, now: float) -> Call:
    request = ChatRequest("m", ({"role": "user", "content": "Hi"},), stream=True)
    call = Call(
        "r",
        Principal("k", "t", tier="pro"),
        request,
        POLICY,
        Receipt("r", 0.0),
        now,
    )
    call.estimate = TokenEstimate(PROMPT, expected, expected)
    model = POLICY.models["m"]
    call.candidate = Candidate("m", model.targets[0], model.timeouts)
    return call


def measure(kind: str, caps: str, seconds: float, samples: int) -> dict[str, float | str]:
    whole = run(kind, caps, seconds)
    known = [i for i in whole.refused if i >= KNOWN]
    step = max(1, len(known) // samples)
    fates = [run(kind, caps, seconds, let_in=i).fate for i in known[::step]]
    return {
        "arrivals": kind,
        "lengths": caps,
        "refused": len(whole.refused),
        "wrong": fates.count("served") / len(fates) if fates else 0.0,
        "late": whole.timeout_error / max(1, whole.admitted),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    began = time.perf_counter()
    rows = [
        measure(kind, caps, given.seconds, given.samples)
        for kind in ("steady", "bursts")
        for caps in ("true", "wide")
    ]
    print("| arrivals | lengths | refused | of these wrongly | late |")
    print("|---|---|---|---|---|")
    for row in rows:
        print("| {arrivals} | {lengths} | {refused} | {wrong:.0%} | {late:.1%} |".format(**row))
    print(f"\n{time.perf_counter() - began:.0f} s")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
