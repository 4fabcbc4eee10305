"""A whole replay of one policy, in virtual time: from the job to what was decided."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gateway.lab.deciding import Deciding
from gateway.lab.policy_lines import PolicyLines
from gateway.lab.policy_tests.virtual_time import VirtualTime
from gateway.lab.replay.assumptions import assumptions
from gateway.lab.replay.callers import Callers
from gateway.lab.replay.decisions import Decisions
from gateway.lab.replay.errors import ReplayError
from gateway.lab.replay.faults import parse_faults
from gateway.lab.replay.job import Job
from gateway.lab.replay.replay import Replay
from gateway.lab.replay.replay_backend import ReplayBackend, World
from gateway.lab.replay.service_times import Services, parse_service
from gateway.lab.replay.simulated_gateway import SimulatedGateway
from gateway.lab.replay.simulated_loop import SimulatedLoop
from gateway.lab.replay.survey import Survey, requests_of, survey
from gateway.policy.loader import Loaded
from gateway.policy.problems import suggestion
from gateway.recording.recorded_request import RecordedRequest

RELATIVE = 10.0**8
"""Arrivals below that are no Unix time: such a trace begins with the year."""
NEW_YEAR = 1_767_225_600.0
"""2026-01-01, midnight UTC: a day and a month begin with it."""

Told = Callable[[str, int, int], None]
"""What is done, how many are, of how many (0: nobody knows)."""


def run_job(job: Job, loaded: Loaded, env: Mapping[str, str], clock: VirtualTime, told: Told) -> Decisions:
    """Raises ``ReplayError``."""
    trace = Path(job.trace)
    known = survey(trace, job.most, lambda done: told("reading", done, 0))
    zero = known.first if known.first >= RELATIVE else NEW_YEAR
    clock.set(zero)
    world = _world(job, loaded, known, zero)
    found = Decisions(known.requests)
    loop = SimulatedLoop(clock)
    # The loop would keep a set of all open async generators; all of ours are closed by their readers.
    hooks = sys.get_asyncgen_hooks()
    loop.run_until_complete(asyncio.sleep(0))
    try:
        loop.run_until_complete(_replayed(job, loaded, env, known, world, found, told))
    finally:
        sys.set_asyncgen_hooks(*hooks)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    return found


async def _replayed(
    job: Job,
    loaded: Loaded,
    env: Mapping[str, str],
    known: Survey,
    world: World,
    found: Decisions,
    told: Told,
) -> None:
    sys.set_asyncgen_hooks(firstiter=None)
    folder = Path(job.policies)
    gateway = SimulatedGateway(loaded, folder, world, job.seed)
    lines = PolicyLines(loaded, env, beside=None)
    callers = Callers(gateway.policy, gateway.keys, job.tenants, job.models, job.seed)
    deciding = Deciding(gateway.policy, lines)
    # What is no record of a gateway's does not say whether answers were streamed: most are.
    stream = job.stream if job.stream is not None or known.have_models else True

    def arrived(done: int) -> None:
        told("replaying", done, known.requests)

    replay = Replay(gateway, world, callers, deciding, found, arrived, stream)
    try:
        await replay.run(_arrivals(job, known), known.first, job.speed)
    finally:
        found.facts = {
            "assumed": [*assumptions(gateway.policy, loaded, known, callers, job, gateway.bills.unpriced)],
            "services": [*_services(gateway, world)],
            "beside": gateway.bills.beside,
            "queues": _queue_lines(gateway, lines),
            "selects": {name: _select_line(name, lines) for name in gateway.policy.models},
        }
        await gateway.aclose()


def _arrivals(job: Job, known: Survey) -> Iterator[RecordedRequest]:
    """In order of time. Those of a record are in the order in which they ended."""
    requests = requests_of(Path(job.trace), job.most)
    return requests if known.in_order else iter(sorted(requests, key=lambda one: one.at))


def _world(job: Job, loaded: Loaded, known: Survey, zero: float) -> World:
    backends = loaded.policy.backends
    given = dict(map(parse_service, job.services))
    faults = parse_faults(job.faults, zero)
    for option, names in (("--service", given), ("--outage", faults)):
        for name in names:
            if name and name not in backends:
                hint = suggestion(name, (*backends,))
                raise ReplayError(f"{option}: no backend of {job.policies} is named '{name}'{hint}")
    usual = {model: known.usual_answer(model) for model in known.lengths} | {"": known.usual_answer("")}
    services = Services(given, known.measured, known.overall)
    return World(services, {}, faults, usual, job.cache_tokens, _without_prompt_cache(known))


def _without_prompt_cache(known: Survey) -> frozenset[str]:
    """Backends whose answers were recorded, and none of them with a token from a prompt cache."""
    return frozenset(
        name for name, answers in known.answered_at.items() if answers and not known.cached_at[name]
    )


def _services(gateway: SimulatedGateway, world: World) -> Iterator[dict[str, object]]:
    for name, backend in gateway.backends.items():
        if isinstance(backend, ReplayBackend):
            for target in backend.targets:
                times, source = world.services.of(name, target)
                yield {
                    "backend": name,
                    "model": target,
                    "times": str(times),
                    "from": source,
                    "most_in_flight": backend.most,
                }


def _select_line(model: str, lines: PolicyLines) -> str:
    """What chooses among the targets of a model."""
    return "\n".join(map(str, lines.written("models", model, "select")))


def _queue_lines(gateway: SimulatedGateway, lines: PolicyLines) -> dict[str, str]:
    """By tier and backend: the lines that make a request wait there."""
    policy, found = gateway.policy, {}
    for tier in (*policy.tiers, ""):
        for name in policy.backends:
            limits = ("max_concurrency", "max_tokens_in_flight")
            at = [line for limit in limits for line in lines.written("backends", name, limit)]
            at = at or [*lines.written("backends", name)]
            mine = lines.written("tiers", tier, "on_saturation") or lines.written("tiers", tier)
            found[f"{tier} {name}"] = "\n".join(dict.fromkeys(map(str, (*at, *mine))))
    return found
