"""What a worker keeps for its lifetime, whatever the policy: connections of its own, and what it has learned."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random

import httpx

from gateway.adapters.listing import ListingRoom
from gateway.adapters.room import AdapterRoom
from gateway.admission.pools import Pools
from gateway.backends.cold_start import ReplicaOf
from gateway.backends.poster import Poster
from gateway.backends.transport import OutgoingTransport
from gateway.cascade.complexity import ComplexityClassifier
from gateway.cascade.scorers import EmbeddingScorer, RequestScorer
from gateway.children.process_pool import ProcessPool
from gateway.control.peers import Peers
from gateway.evaluation.evaluator import Evaluator
from gateway.fallback.health import HealthRegistry
from gateway.held_prefixes.held_prefixes import HeldPrefixes
from gateway.metering.estimate import Estimator
from gateway.observe.backend_watch import BackendWatch
from gateway.observe.callbacks import Callbacks
from gateway.observe.metrics import Metrics
from gateway.replicas.replicas import Replicas
from gateway.routing.affinity import Affinity
from gateway.routing.score import Scores
from gateway.routing.shadow import Shadows
from gateway.runtime.drift import Drift
from gateway.runtime.rollouts import Rollouts
from gateway.sidecar.client import NoSidecar, SidecarClient
from gateway.types import Backend


class WorkerState:
    """Which backends are healthy, how fast and how full they are, who has which prefix, survives a policy edit."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        folder: Path = Path("policies"),
        state_dir: Path = Path(".tollgate"),
        workers: int = 1,
        worker: int = 1,
        dev_key_sha256: str | None = None,
        sidecar: Path | None = None,
        transport: Callable[[], httpx.AsyncBaseTransport] | None = None,
        scanning: ProcessPool | None = None,
        slots: Path | None = None,
        peers: Peers | None = None,
        stand_in: Callable[[str], Backend] | None = None,
        random: Random | None = None,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        """``env`` has the variables that the policy reads.

        ``sidecar`` is the socket of the process that runs the small models.

        ``scanning`` is where guards scan long texts; without it they scan all texts on the event loop.

        ``slots`` is the folder in which workers share the slots of backends.

        ``transport`` replaces the network, for tests; ``stand_in`` makes what answers in the place of a backend, and
        ``random`` draws where targets are chosen by weight.
        """
        self.metrics = metrics
        self.env = env
        self.folder = folder
        self.state_dir = state_dir
        self.peers = peers or Peers(None, worker)
        """The other workers of this machine."""
        self.dev_key_sha256 = dev_key_sha256
        self.transport = transport
        self.stand_in = stand_in
        self.random = random or Random()
        self.scanning = scanning
        self.outgoing = (transport or OutgoingTransport)()
        """For requests of the gateway's own, such as those for JWT keys."""
        self.poster = Poster(transport() if transport is not None else None)
        """For servers that judge texts."""
        self.sidecar: SidecarClient | NoSidecar = (
            SidecarClient(sidecar) if sidecar is not None else NoSidecar()
        )
        self.estimator = Estimator()
        classifier = ComplexityClassifier.load()
        self.scorer = RequestScorer(classifier)
        self.embedded_scorer = RequestScorer(EmbeddingScorer.load(classifier, self.sidecar))
        self.worker = worker
        self.pools = Pools(workers, worker, folder=slots)
        self.callbacks = Callbacks(metrics, self.outgoing, worker=worker, env=env)
        self.health = HealthRegistry(listener=BackendWatch(metrics, self.callbacks))
        self.affinity = Affinity()
        self.scores = Scores(clock=self.pools.clock)
        self.shadows = Shadows(random=self.random)
        self.replica_of: ReplicaOf = _no_replica
        """Of the policy generation in force."""
        self.rollouts: Rollouts | None = None
        """Of who serves; what only asks what would be done begins none."""
        self.evaluator: Evaluator | None = None
        """The same."""
        self.drift: Drift | None = None
        """As ``rollouts``."""
        self.adapters: AdapterRoom | None = None
        """As ``rollouts``."""
        self.listings: ListingRoom | None = None
        """As ``rollouts``."""
        self.replicas: Replicas | None = None
        """Of who serves; for what only asks what would be done, a backend is one server."""
        self.held: HeldPrefixes | None = None
        """Of who serves."""
        self._disabled_since: dict[str, float] = {}

    def disabled_since(self, names: Collection[str]) -> Mapping[str, float]:
        """When each of these backends, which are all that are disabled now, went out of use (``time.monotonic``)."""
        now = time.monotonic()
        self._disabled_since = {name: self._disabled_since.get(name, now) for name in names}
        return self._disabled_since

    async def aclose(self) -> None:
        if self.rollouts is not None:
            await self.rollouts.aclose()
        if self.drift is not None:
            await self.drift.aclose()
        if self.replicas is not None:
            await self.replicas.aclose()
        if self.adapters is not None:
            await self.adapters.aclose()
        if self.listings is not None:
            await self.listings.aclose()
        if self.held is not None:
            await self.held.aclose()
        await self.callbacks.aclose()
        await self.outgoing.aclose()
        await self.poster.aclose()
        await self.sidecar.aclose()


@contextmanager
def _no_replica(_: str) -> Iterator[None]:
    yield None
