"""Adapters without servers that have them, for a policy that is asked what it would do: each that there is to be is
ready wherever the policy lets it be."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from gateway.adapters.adapter import Adapter
from gateway.adapters.catalogue import Catalogue
from gateway.adapters.derived import loads_adapters, takes_adapters, targets_of
from gateway.adapters.listed import ListedAdapters, lists_adapters
from gateway.adapters.listing import ListingRoom
from gateway.adapters.residents import Residents
from gateway.adapters.room import AdapterRoom
from gateway.backends.lora_names import Listing
from gateway.files.stored_files import StoredFiles
from gateway.policy.schema import Policy
from gateway.runtime.runtime import Adapted, Runtime
from gateway.runtime.worker_state import WorkerState
from gateway.types import Principal


def base_of(policy: Policy, asked: str) -> tuple[str, str] | None:
    """The model that ``asked``, as ``base:name``, adapts, and the adapter's name; None where it can name none: a model
    of the policy keeps its name."""
    before, colon, name = asked.rpartition(":")
    base = policy.resolve(before) if colon and name and policy.resolve(asked) is None else None
    if base is None or not (targets_of(policy, base) or lists_adapters(policy, base)):
        return None
    return base, name


def uploaded(base: str, name: str, tenant: str, shared_with: Sequence[str] = ()) -> Adapter:
    """As ``tenant`` would have it."""
    digest = hashlib.sha256(f"{tenant}\n{base}:{name}".encode()).hexdigest()
    return Adapter(
        id=f"adapter-{digest[:32]}",
        tenant=tenant,
        name=name,
        base=base,
        rank=8,
        targets=(),
        bytes=0,
        sha256=digest,
        archive="",
        archive_sha256=digest,
        archive_bytes=0,
        created_at=0,
        key_id="",
        shared_with=tuple(shared_with),
    )


def at_hand(state: WorkerState, uploads: Iterable[Adapter], listed: Iterable[str]) -> None:
    """``state``'s adapters are these from now on; ``listed``: those that servers have of themselves, as
    ``base:name``."""
    state.adapters = cast(AdapterRoom, _Room(uploads))
    state.listings = cast(ListingRoom, _Listings(listed))


def list_all(
    adapters: ListedAdapters, policy: Policy, names: Mapping[str, str], listed: Iterable[str]
) -> None:
    """Each server whose backend ``policy`` lets list adapters lists those of its models. ``names``: the servers, and
    the backends that they are of."""
    asked = policy.adapters.listed if policy.adapters is not None else {}
    servers = {name: backend for name, backend in names.items() if backend in asked}
    adapters.keep(servers)
    for server, backend in servers.items():
        found: dict[str, str] = {}
        for one in listed:
            base, _, name = one.rpartition(":")
            model = policy.models.get(policy.resolve(base) or "")
            targets = model.targets if model is not None else ()
            for target in targets:
                if target.backend == backend:
                    found[name] = target.model
        adapters.update(server, Listing(found))


class ChangedViews:
    """Adapters are found as ever; what serves calls to one is what ``change`` makes of it."""

    def __init__(self, adapted: Adapted, change: Callable[[Runtime], Runtime]) -> None:
        self._adapted = adapted
        self._change = change

    def __getattr__(self, name: str) -> object:
        return getattr(self._adapted, name)

    def find(self, principal: Principal, asked: str) -> Runtime | None:
        view = self._adapted.find(principal, asked)
        return None if view is None else self._change(view)


class _Room:
    def __init__(self, uploads: Iterable[Adapter]) -> None:
        self._adapters = sorted(uploads, key=lambda one: one.id)
        self.catalogue = Catalogue()
        self._residents: dict[str, Residents] = {}

    def use(self, policy: Policy, files: StoredFiles | None, names: Mapping[str, str]) -> None:
        self.catalogue.update(0, self._adapters if loads_adapters(policy) else ())
        ids = frozenset(one.id for one in self._adapters)
        self._residents = {
            name: Residents(_Server(ids)) for name, parent in names.items() if takes_adapters(policy, parent)
        }

    def residents(self, backend: str) -> Residents | None:
        return self._residents.get(backend)

    def held(self) -> dict[str, frozenset[str]]:
        return {}

    async def aclose(self) -> None:
        """Nothing is held."""


class _Server:
    """It has them all."""

    def __init__(self, ids: frozenset[str]) -> None:
        self._ids = ids

    async def loaded(self) -> frozenset[str]:
        return self._ids

    async def load(self, adapter: Adapter) -> None:
        """It is there."""

    async def unload(self, id: str) -> None:
        """Nothing makes room."""

    async def aclose(self) -> None:
        """Nothing is held."""


class _Listings:
    def __init__(self, listed: Iterable[str]) -> None:
        self._listed = [*listed]
        self.adapters = ListedAdapters()

    async def use(self, policy: Policy, names: Mapping[str, str]) -> None:
        list_all(self.adapters, policy, names, self._listed)

    def problem(self, server: str) -> str | None:
        return None

    def page(self, server: str, page: bytes) -> None:
        """None is asked."""

    async def aclose(self) -> None:
        """Nothing is held."""
