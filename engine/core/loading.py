"""Requests whose prefix is in another tier of memory: who waits for it, and who has it computed again instead.

A request that could be admitted is looked up beyond the device first. Where its blocks come back sooner than they
would be computed, by the speeds measured so far, it is *loading* until they are cached on the device, where it then
finds them like any others; so it holds nothing meanwhile, and others go on. A preempted one comes back by this rule.
What no tier here has may be asked of another engine (``engine/handover``): whatever comes of that, the request goes on
with what is there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from engine.core.admission import Admission
from engine.core.block_tables import BlockTables
from engine.core.latency_estimator import LatencyEstimator
from engine.core.prefix_cache import Node
from engine.core.request import Request
from engine.core.request_queues import RequestQueues
from engine.core.tiers.remote import Fetch, RemoteBlocks
from engine.core.tiers.tiered_cache import TieredCache
from engine.core.tiers.worth import worth_loading

_SLICE = 0.005
"""Seconds of copying before a step in which others decode, which wait for it."""
_FIRST = 16
"""Blocks of such a slice before the speed is known."""
_DOUBT = 16
"""Times that blocks were left out as they come too slowly, after which they are loaded, to measure again."""
_PATIENCE = 5.0
"""Seconds to wait for the disk, after which a request is computed. While a read takes longer none is begun."""


@dataclass(slots=True, eq=False)
class _Job:
    request: Request
    known: Node
    """What the device had of its prefix,"""
    keys: list[bytes]
    """and the blocks after that."""
    awaited: set[bytes]
    """Those of them that are read from the disk."""
    began: float
    fetch: Fetch | None = None
    """Of further blocks, which another engine computes; ``keys`` has them, too."""
    loaded: int = 0


class Loading:
    def __init__(
        self,
        queues: RequestQueues,
        tables: BlockTables,
        admission: Admission,
        tiers: TieredCache,
        latency: LatencyEstimator,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._queues = queues
        self._tables = tables
        self._admission = admission
        self._tiers = tiers
        self._latency = latency
        self._clock = clock
        self.remote: RemoteBlocks | None = None
        """Another engine that may have what no tier has."""
        self._jobs: list[_Job] = []
        self._declined = 0
        self._overdue: set[bytes] = set()
        """Blocks that a request has waited for in vain, and that are still being read."""

    @property
    def busy(self) -> bool:
        """Whether ``tick`` has something to do although nothing is to be computed."""
        return self._tiers.busy or bool(self._jobs) or (self.remote is not None and self.remote.busy)

    def tick(self) -> None:
        """Before each plan: copies what is to be copied, and returns those to the queue whose blocks are back."""
        self._tiers.tick()
        if self.remote is not None:
            self.remote.tick()
        if self._overdue:
            self._overdue = {key for key in self._overdue if self._tiers.is_reading(key)}
        if self._queues.waiting:
            self._begin()
        if self._jobs:
            self._advance()

    def _begin(self) -> None:
        queues = self._queues
        for request in list(itertools.islice(queues.waiting, max(0, queues.free_slots))):
            if request.sought or self._admission.blocked(request):
                continue
            if not self._admission.can_admit(request):
                break
            self.begin(request)

    def begin(self, request: Request) -> bool:
        """Whether it is loading now: one that waits, and was looked up on the device. False from the second time on."""
        if request.sought:
            return False
        request.sought = True
        if request.chain is None or request.scoring:
            return False
        keys = self._worth(request, request.chain)
        every = keys
        fetch = None
        if self.remote is not None and request.adapter is None:
            every = self._tiers.keys(request, request.chain)
            fetch = self.remote.begin(request, request.chain.depth + len(keys), every[len(keys) :])
        if not keys and fetch is None:
            return False
        awaited = self._tiers.fetch(keys, request.weight)
        self._queues.load(request)
        self._jobs.append(
            _Job(request, request.chain, every if fetch else keys, awaited, self._clock(), fetch)
        )
        return True

    def _worth(self, request: Request, known: Node) -> list[bytes]:
        found, copier = self._tiers.missing(request, known), self._tiers.copier
        if self._overdue:
            found = list(itertools.takewhile(lambda one: one[1], found))
        if not found:
            return []
        count = worth_loading(
            [here for _, here in found],
            block_bytes=copier.block_bytes,
            block_tokens=self._tables.block_size,
            prefill_speed=self._latency.prefill_speed,
            load_bandwidth=copier.load_bandwidth,
            read_bandwidth=copier.read_bandwidth,
        )
        if not count:
            self._declined = (self._declined + 1) % _DOUBT
            if not self._declined:
                count = len(found)
        return [key for key, _ in found[:count]]

    def _advance(self) -> None:
        queues, copier = self._queues, self._tiers.copier
        left = sum(len(job.keys) for job in self._jobs)
        if queues.running:
            slice_ = int(_SLICE * copier.load_bandwidth / copier.block_bytes)
            left = max(1, slice_) if copier.load_bandwidth else _FIRST
        jobs, self._jobs = self._jobs, []
        now = self._clock()
        for job in jobs:
            if job.request not in queues.loading:
                if job.fetch is not None:
                    job.fetch.cancel()
                continue  # it was aborted, or parked
            job.awaited = {key for key in job.awaited if self._tiers.is_reading(key)}
            if job.awaited and now - job.began > _PATIENCE:
                self._overdue |= job.awaited
                job.awaited = set()
            if job.awaited or left <= 0 or (job.fetch is not None and not job.fetch.done):
                self._jobs.append(job)
                continue
            count = self._tiers.load(job.request, job.known, job.keys, left)
            left -= count
            job.loaded += count
            if count and job.loaded < len(job.keys):
                self._jobs.append(job)
                continue
            queues.loaded(job.request)
            if job.fetch is not None:
                job.request.elsewhere = job.fetch.computed
            # What the device had was evicted meanwhile: by now that is in host memory, too.
            job.request.sought = job.known.alive
