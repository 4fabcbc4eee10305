"""A whole benchmark: every server under every load, in turns."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from random import Random
from time import monotonic

import uvloop

from gateway.lab.bench.arrivals import Arrivals, Rate
from gateway.lab.bench.conversations import Workload
from gateway.lab.bench.knee import KneeSearch
from gateway.lab.bench.load import Extent, Load
from gateway.lab.bench.run import Run
from gateway.lab.bench.sample import Sample
from gateway.lab.bench.server import Asker, Server
from gateway.lab.bench.slo import Slo
from gateway.lab.bench.summary import Result
from gateway.lab.bench.words import Scale
from gateway.lab.progress import Progress
from gateway.server.connection_limits import descriptors


@dataclass(frozen=True)
class Knee:
    """What is searched: see ``KneeSearch``."""

    first: float
    most: float
    share: float
    repeats: int
    tolerance: float
    arrivals: Arrivals

    def search(self) -> KneeSearch:
        return KneeSearch(self.first, self.most, self.share, self.repeats, self.tolerance)


@dataclass(frozen=True)
class Plan:
    """What is to be done."""

    servers: Sequence[Server]
    loads: Sequence[Load]
    extent: Extent
    workload: Workload
    slo: Slo
    seed: int = 0
    rounds: int = 1
    timeout: float = 600.0
    think: float = 0.0
    per_word: float | None = None
    """Tokens a word makes; None: as the first server counts."""
    knee: Knee | None = None


@dataclass
class Report:
    """What was found."""

    slo: Slo
    results: list[Result] = field(default_factory=list)
    """By load, and then by server."""
    knees: dict[str, KneeSearch] = field(default_factory=dict)
    """By server."""
    interrupted: bool = False
    began: float = 0.0
    scale: Scale = field(default_factory=Scale)


class Session:
    """To be run once, within the loop."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        self._plan = plan
        self._progress = progress
        self._report = Report(plan.slo)
        self._run: Run | None = None
        self._stopped = False
        self._runs: dict[tuple[Load, str], list[Run]] = {}

    async def run(self) -> Report:
        """Ctrl-C ends it early, with what there is. Raises ``BenchError`` where a server does not answer."""
        plan, report = self._plan, self._report
        descriptors()
        report.began = time.time()
        async with AsyncExitStack() as stack:
            stack.callback(self._progress.wipe)
            askers = [await self._ready(server, stack) for server in plan.servers]
            report.scale = await self._scale(askers)
            with self._interruptible():
                if plan.knee is not None:
                    await self._search(plan.knee, askers)
                else:
                    await self._rounds(askers)
        report.interrupted = self._stopped
        servers = {asker.server.name: asker.server for asker in askers}
        report.results = [
            Result(servers[name], load, plan.slo, runs) for (load, name), runs in self._runs.items()
        ]
        if report.knees:  # rather than in the order of the search
            report.results.sort(key=lambda result: result.rate)
        return report

    async def _ready(self, server: Server, stack: AsyncExitStack) -> Asker:
        """With its model found, and answering."""
        self._progress.show(None, f"{server.name}: is it there?")
        asker = Asker(server, timeout=self._plan.timeout)
        stack.push_async_callback(asker.aclose)
        if not server.model:
            asker = Asker(replace(server, model=await asker.model()), timeout=self._plan.timeout)
            stack.push_async_callback(asker.aclose)
        await asker.check()
        return asker

    async def _scale(self, askers: Sequence[Asker]) -> Scale:
        if self._plan.per_word is not None:
            return Scale(self._plan.per_word)
        return await askers[0].scale() if self._plan.workload.makes_text else Scale()

    async def _rounds(self, askers: Sequence[Asker]) -> None:
        """Every other round the other way about, so that what changes with time touches all alike."""
        for round_ in range(self._plan.rounds):
            for load in self._plan.loads:
                for asker in askers if round_ % 2 == 0 else reversed(askers):
                    await self._one(asker, load, round_, f"round {round_ + 1}, {load}")

    async def _search(self, knee: Knee, askers: Sequence[Asker]) -> None:
        searches = self._report.knees
        searches.update({asker.server.name: knee.search() for asker in askers})
        while not self._stopped:
            open_ = [
                (asker, rate) for asker in askers if (rate := searches[asker.server.name].next()) is not None
            ]
            if not open_:
                return
            for asker, rate in open_:
                search = searches[asker.server.name]
                load = Load(rate=Rate.constant(rate), arrivals=knee.arrivals)
                tried = len(search.trials.get(rate, ()))
                run = await self._one(asker, load, tried, f"knee: {load}, trial {tried + 1}")
                if not self._stopped:
                    search.tell(rate, Result(asker.server, load, self._plan.slo, [run]).share)

    async def _one(self, asker: Asker, load: Load, round_: int, told: str) -> Run:
        """Rounds differ in their lengths and arrivals, servers and loads within one do not: a rate only stretches
        them."""
        plan, server = self._plan, asker.server
        heard = _Heard(self._progress, f"{server.name}, {told}", plan.extent)
        run = Run(asker, load, plan.extent, think=plan.think, heard=heard.sample)
        if self._stopped:
            return run
        self._run = run
        self._runs.setdefault((load, server.name), []).append(run)
        draws, words = f"{plan.seed}/{round_}", f"{plan.seed}/{round_}/{load}/{server.name}"
        conversations = plan.workload.conversations(draws, words, self._report.scale)
        await run.run(conversations, Random(f"{draws}/arrivals"))
        self._run = None
        return run

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """The first Ctrl-C stops, the next one ends the command."""
        loop = asyncio.get_running_loop()

        def stop() -> None:
            self._stopped = True
            loop.remove_signal_handler(signal.SIGINT)
            if self._run is not None:
                self._run.stop()

        with suppress(
            NotImplementedError, RuntimeError, ValueError
        ):  # not in a main thread, or not on this system
            loop.add_signal_handler(signal.SIGINT, stop)
        try:
            yield
        finally:
            with suppress(NotImplementedError, RuntimeError, ValueError):
                loop.remove_signal_handler(signal.SIGINT)


class _Heard:
    """What the bar says of one run."""

    def __init__(self, progress: Progress, told: str, extent: Extent) -> None:
        self._progress = progress
        self._told = told
        self._extent = extent
        self._began = monotonic()
        self._ended = self._failed = 0

    def sample(self, sample: Sample) -> None:
        self._ended += 1
        self._failed += not sample.ok
        shares = []
        if self._extent.total:
            shares.append(self._ended / self._extent.total)
        if self._extent.until:
            shares.append((monotonic() - self._began) / self._extent.until)
        failed = f", {self._failed} failed" if self._failed else ""
        self._progress.show(max(shares, default=None), f"{self._told}: {self._ended} answered{failed}")


def run_session(plan: Plan, progress: Progress) -> Report:
    """On a loop of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Session(plan, progress).run())
