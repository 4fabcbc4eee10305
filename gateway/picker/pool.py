"""The engines that may be picked, by the policy in force and the replicas that its backend has now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import httpx

from gateway.adapters.listing import ListingRoom
from gateway.admission.pools import Pools
from gateway.admission.shedding import TierRules, update_terms
from gateway.backends.engine_poller import EnginePoller
from gateway.backends.transport import OutgoingTransport
from gateway.fallback.health import HealthListener, HealthRegistry
from gateway.fallback.hop import Hops
from gateway.held_prefixes.held_prefixes import HeldPrefixes
from gateway.metering.estimate import Estimator
from gateway.policy.loader import Loaded
from gateway.policy.members import UNKNOWN, Members, is_replicated
from gateway.policy.schema import Backend, Policy, Replicated
from gateway.replicas.replicas import Replicas
from gateway.routing.affinity import Affinity
from gateway.routing.router import Router
from gateway.routing.score import Scores
from gateway.routing.scored import Scored
from gateway.routing.told_holdings import ToldHoldings
from gateway.runtime.backends import build_poller, is_polled

log = logging.getLogger(__name__)


class NoPool(ValueError):
    """The policy has no backend whose replicas could be picked; says what to write."""


@dataclass(frozen=True, eq=False, slots=True)
class Standing:
    """One policy's, with the replicas of one moment. A request keeps the one that it began with."""

    policy: Policy
    router: Router
    hops: Hops
    endpoints: Mapping[str, str]
    """By the backend that a replica is, its ``ip:port``."""
    usual: str
    """The model that is taken to be asked for where nobody says."""


class EnginePool:
    """Follows a policy and its replicas. What is learnt of engines outlives both."""

    def __init__(
        self,
        backend: str | None,
        state_dir: Path,
        *,
        zone: str | None = None,
        listener: HealthListener | None = None,
        random: Random | None = None,
    ) -> None:
        """``backend`` is the one whose replicas they are; the only one that has any, where it is None."""
        self.transport: Callable[[], httpx.AsyncBaseTransport] | None = None
        self.pools = Pools()
        self.held = HeldPrefixes(None, lambda: (self.transport or OutgoingTransport)())
        self.listings: ListingRoom | None = None
        """An adapter is asked of whoever is picked."""
        self.holdings = ToldHoldings(self.held)
        self.scores = Scores(self.holdings, clock=self.pools.clock)
        self.rules = TierRules()
        self.estimator = Estimator()
        self.ready = False
        """Whether it is known which engines there are."""
        self.standing: Standing | None = None
        self._backend = backend
        self._random = random or Random()
        self._affinity = Affinity()
        self.health = HealthRegistry(listener=listener)
        self._replicas = Replicas(state_dir, zone=zone)
        self.health.watcher = self._replicas.rotation.watcher
        self._replicas.on_change = self._changed
        self._loaded: Loaded | None = None
        self._pollers: dict[str, tuple[Backend, EnginePoller]] = {}
        self._changing = asyncio.Lock()

    async def apply(self, loaded: Loaded) -> None:
        """Make ``loaded`` the policy for every request from now on. Raises ``NoPool``."""
        pool_of(loaded.policy, self._backend)
        await self._replicas.update(loaded.policy)
        self._loaded = loaded
        await self._changed()

    async def aclose(self) -> None:
        await self._replicas.aclose()
        await self._poll({})
        await self.held.aclose()

    async def _changed(self) -> None:
        async with self._changing:
            if self._loaded is None:
                return
            loaded, members = self._replicas.applied(self._loaded)
            policy = loaded.policy
            name = pool_of(policy, self._backend)
            its: Members = {name: members.get(name, ())}
            servers = {member.name: policy.backends[member.name] for member in its[name]}
            await self.held.update(policy, its, among={name})
            await self._poll(servers)
            self.pools.update(policy)
            update_terms(policy, self.pools)
            gone = {one for one, _, _ in self.health.breakers()} - policy.backends.keys()
            for one in gone - {pool.name for pool in self.pools}:
                self.health.forget(one)
            scored = Scored.of(policy, self.scores, self.pools)
            self.scores.keep(servers if scored is not None else ())
            router = Router(
                policy,
                servers.keys(),
                self.pools,
                self._affinity,
                self._random,
                members=its,
                rotation=self._replicas.rotation,
                scored=scored,
            )
            self.standing = Standing(
                policy,
                router,
                Hops(policy, self.health),
                endpoints_of(servers),
                _usual(policy, name),
            )
            self.ready = loaded.disabled.get(name) != UNKNOWN

    async def _poll(self, servers: Mapping[str, Backend]) -> None:
        """Each of ``servers`` that tells its load, and no other."""
        gone = [
            self._pollers.pop(name)[1]
            for name, (config, _) in list(self._pollers.items())
            if servers.get(name) != config
        ]
        for name, config in servers.items():
            if name not in self._pollers and is_polled(config):
                poller = build_poller(name, config, self)
                self._pollers[name] = config, poller
        for _, poller in self._pollers.values():
            poller.servers = len(self._pollers)
        await asyncio.gather(*(poller.aclose() for poller in gone))


def pool_of(policy: Policy, name: str | None) -> str:
    """The backend whose replicas are picked. Raises ``NoPool``."""
    having = [one for one, config in policy.backends.items() if is_replicated(config) and "@" not in one]
    if name is None:
        if len(having) != 1:
            which = f"has {', '.join(having)}: name one with --backend" if having else "has no such backend"
            raise NoPool(f"engines are the replicas of a backend, and the policy {which}")
        (name,) = having
    if name not in having:
        raise NoPool(f"backend '{name}' has no replicas in the policy: give it 'replicas'")
    if not any(target.backend == name for model in policy.models.values() for target in model.targets):
        raise NoPool(f"no model of the policy has backend '{name}' as a target")
    config = policy.backends[name]
    replicas = config.replicas if isinstance(config, Replicated) else None
    if replicas is not None and replicas.srv is not None:
        raise NoPool(
            f"SRV records have names, and a gateway sends a request to an address: give backend '{name}' its "
            "replicas by 'dns', 'kubernetes' or 'pool'"
        )
    for server in replicas.servers if replicas is not None else ():
        if _endpoint(server.url) is None:
            host = urlsplit(server.url).hostname
            raise NoPool(
                f"replica {server.url} has a name, and a gateway sends a request to an address: write that, or "
                f"'dns: {host}'"
            )
    return name


def endpoints_of(servers: Mapping[str, Backend]) -> dict[str, str]:
    """By name, the ``ip:port`` of those that have one."""
    found: dict[str, str] = {}
    for name, config in servers.items():
        if (place := _endpoint(str(getattr(config, "base_url", "")))) is not None:
            found[name] = place
        else:
            log.warning("'%s' is not picked: a gateway sends requests to addresses, and this is a name", name)
    return found


def _endpoint(url: str) -> str | None:
    """``ip:port``; None for a host's name."""
    parts = urlsplit(url)
    try:
        address = ip_address(parts.hostname or "")
    except ValueError:
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _usual(policy: Policy, backend: str) -> str:
    return next(
        name
        for name, model in policy.models.items()
        if any(target.backend == backend for target in model.targets)
    )
