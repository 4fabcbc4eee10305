"""Adapters that servers list of themselves, without anybody here having uploaded them: vLLM's ``--lora-modules``, what
is loaded into SGLang, the bundled engine's ``--adapter``.

All of it is in memory: a name is there as long as a server that is asked for it lists it.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from gateway.adapters.adapter import is_adapter_id
from gateway.backends.lora_names import Listing, LorasInUse
from gateway.policy.schema import Model, OpenAIBackend, Policy, Target

LACKS_FOR = 10.0
"""Seconds for which a server that lists an adapter, and answers 404 for it, is asked after the others."""
USUAL_SLOTS = 8
"""Adapters that a server has ready at once, where it does not say."""


@dataclass(frozen=True, slots=True)
class ListedAdapter:
    """One that a caller may ask."""

    base: str
    """The public model that it adapts."""
    name: str
    targets: tuple[tuple[Target, Target], ...]
    """Those of the base where some server lists it, and what each becomes: the name by which that is asked for it."""

    @property
    def model(self) -> str:
        """What callers ask for."""
        return f"{self.base}:{self.name}"


@dataclass(slots=True)
class _Server:
    backend: str
    """That it is, or is a replica of."""
    listing: Listing = field(default_factory=Listing)
    ready: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Adapters that it is likely to have in its slots, the last used last: servers make room by LRU, too."""
    slots: int = USUAL_SLOTS
    lacks: dict[str, float] = field(default_factory=dict)
    """Adapters that it has not, whatever it lists, and until when that is believed."""


class ListedAdapters:
    """What the servers list that are asked for it, as this worker knows it."""

    def __init__(
        self,
        *,
        on_gone: Callable[[str, str], object] = lambda server, asked: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_gone`` is told of a server, and the name by which it was asked for an adapter that it had."""
        self._on_gone = on_gone
        self._clock = clock
        self._servers: dict[str, _Server] = {}
        self._by_name: dict[str, dict[str, None]] = {}
        """The servers that list each."""

    def keep(self, servers: Mapping[str, str]) -> None:
        """Only these are asked from now on: by name, the backend that each is, or is a replica of."""
        for name in self._servers.keys() - servers.keys():
            self.update(name, Listing())
            del self._servers[name]
        for name, backend in servers.items():
            self._servers.setdefault(name, _Server(backend)).backend = backend

    def update(self, server: str, listing: Listing) -> None:
        """What it lists now. Adapters that came here, by upload, are none of these."""
        one = self._servers.get(server)
        if one is None:
            return
        before = one.listing.adapters
        kept = {name: parent for name, parent in listing.adapters.items() if not is_adapter_id(name)}
        one.listing = Listing(kept, listing.roots, listing.left_out)
        for name in before.keys() - kept.keys():
            its = self._by_name[name]
            del its[server]
            if not its:
                del self._by_name[name]
            one.ready.pop(name, None)
            one.lacks.pop(name, None)
            for asked in (name, f"{before[name]}:{name}"):
                self._on_gone(server, asked)
        for name in kept.keys() - before.keys():
            self._by_name.setdefault(name, {})[server] = None

    def uses(self, server: str, in_use: LorasInUse) -> None:
        """What it says that it uses just now."""
        one = self._servers.get(server)
        if one is None:
            return
        one.slots = in_use.slots or one.slots
        for name in reversed(in_use.names):
            self._used(one, name)

    def sent(self, server: str, name: str) -> None:
        """A request goes there that uses it."""
        if (one := self._servers.get(server)) is not None:
            self._used(one, name)

    def lacks(self, server: str, name: str) -> None:
        """It has answered that it has none by this name."""
        if (one := self._servers.get(server)) is not None and name in one.listing.adapters:
            one.lacks[name] = self._clock() + LACKS_FOR
            one.ready.pop(name, None)

    def restarted(self, server: str) -> None:
        """It may have been: nothing is known of what it has ready."""
        if (one := self._servers.get(server)) is not None:
            one.ready.clear()

    def rank(self, server: str, adapter: ListedAdapter) -> int | None:
        """The lower, the sooner it is to be asked for it: 0 where it has it ready, 1 where it has room, 2 where others
        have to make room, 4 where it was found not to have it. None where it does not list it."""
        one, name = self._servers.get(server), adapter.name
        if one is None or not any(one.listing.parent(name, base.model) for base, _ in adapter.targets):
            return None
        if one.lacks and (until := one.lacks.get(name)) is not None:
            if self._clock() < until:
                return 4
            del one.lacks[name]
        return 0 if name in one.ready else 1 if len(one.ready) < one.slots else 2

    def servers(self) -> Mapping[str, Listing]:
        return {name: one.listing for name, one in self._servers.items()}

    def servers_of(self, adapter: ListedAdapter) -> list[str]:
        """Those that list it."""
        return [one for one in self._by_name.get(adapter.name, ()) if self.rank(one, adapter) is not None]

    def is_ready(self, server: str, adapter: ListedAdapter) -> bool:
        """Whether it is likely to have it in a slot."""
        one = self._servers.get(server)
        return one is not None and adapter.name in one.ready

    def is_asked_as(self, server: str, model: str) -> bool:
        """Whether ``model`` is the name by which ``server`` is asked for an adapter that it lists."""
        one = self._servers.get(server)
        return one is not None and (
            model in one.listing.adapters or model.rpartition(":")[2] in one.listing.adapters
        )

    def find(self, policy: Policy, base: str, name: str, tenant: str | None = None) -> ListedAdapter | None:
        """The adapter ``base:name`` of a policy's model, as ``tenant`` may ask it; without one, as anybody may."""
        its, model = self._by_name.get(name), policy.models.get(base)
        if its is None or model is None:
            return None
        targets = tuple(self._targets(policy, model, name, its, tenant))
        return ListedAdapter(base, name, targets) if targets else None

    def of(self, policy: Policy, base: str, tenant: str | None = None) -> Iterator[ListedAdapter]:
        """All of the model ``base`` that ``tenant`` may ask, by name."""
        for name in self.names(policy, base, tenant):
            if (found := self.find(policy, base, name, tenant)) is not None:
                yield found

    def names(self, policy: Policy, base: str, tenant: str | None = None) -> list[str]:
        """Their names alone, which cost a fraction of that."""
        model = policy.models.get(base)
        found: set[str] = set()
        for target in model.targets if model is not None else ():
            if not _may_ask(policy, target.backend, tenant):
                continue
            for one in self._servers.values():
                if one.backend == target.backend:
                    found.update(
                        name
                        for name in one.listing.adapters.keys() - found
                        if self._asked_as(policy, one, target, name) is not None
                    )
        return sorted(found)

    def _targets(
        self, policy: Policy, model: Model, name: str, servers: Iterable[str], tenant: str | None
    ) -> Iterator[tuple[Target, Target]]:
        for target in model.targets:
            if not _may_ask(policy, target.backend, tenant):
                continue
            for server in servers:
                one = self._servers[server]
                if one.backend == target.backend and (asked := self._asked_as(policy, one, target, name)):
                    yield target, target.model_copy(update={"model": asked})
                    break

    def _asked_as(self, policy: Policy, one: _Server, target: Target, name: str) -> str | None:
        """The model that ``one`` is asked for; None where it lists none by this name of ``target``'s."""
        parent = one.listing.parent(name, target.model)
        return None if parent is None else asked_as(policy, target.backend, parent, name)

    def _used(self, one: _Server, name: str) -> None:
        if name in one.listing.adapters:
            one.ready[name] = None
            one.ready.move_to_end(name)
        while len(one.ready) > one.slots:
            one.ready.popitem(last=False)


def asked_as(policy: Policy, backend: str, parent: str, name: str) -> str | None:
    """The model that a server is asked for: SGLang takes a bare name for one of its model, and divides at the first
    colon (https://github.com/sgl-project/sglang/pull/11570)."""
    config = policy.backends.get(backend)
    if isinstance(config, OpenAIBackend) and config.telemetry == "sglang":
        return None if ":" in parent else f"{parent}:{name}"
    return name


def lists_adapters(policy: Policy, base: str) -> bool:
    """Whether the model ``base`` has a target whose servers are asked which adapters they list."""
    model = policy.models.get(base)
    return model is not None and any(_may_ask(policy, target.backend, None) for target in model.targets)


def _may_ask(policy: Policy, backend: str, tenant: str | None) -> bool:
    told = policy.adapters.listed.get(backend) if policy.adapters is not None else None
    return told is not None and (tenant is None or any(fnmatchcase(tenant, one) for one in told.tenants))
