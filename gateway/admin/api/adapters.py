"""``/admin/api/adapters``: the adapters of all tenants and of servers, and which servers have them."""

from __future__ import annotations

import asyncio
import logging

from gateway.adapters.adapter import Adapter
from gateway.adapters.listed import ListedAdapter
from gateway.adapters.listing import ListingRoom
from gateway.adapters.room import AdapterRoom
from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Request, Told
from gateway.admin.site import Site, actor_of
from gateway.errors import NotFound
from gateway.policy.schema import Policy
from gateway.web.operation import Operation

MOST_LISTED = 1000
"""Adapters of servers that are told."""

log = logging.getLogger(__name__)


class AdapterSeen(Told):
    id: str
    model: str
    """By which callers ask it."""
    base: str
    tenant: str
    shared_with: list[str]
    rank: int
    target_modules: list[str]
    bytes: int
    sha256: str
    created_at: int
    key: str
    """The id of the key that it came with."""
    held_by: list[str]
    """Servers that have it, as far as the worker knows that answers."""


class ListedAdapterSeen(Told):
    model: str
    """By which callers ask it."""
    base: str
    listed_by: list[str]
    """Servers."""
    ready_on: list[str]
    """Those of them that are likely to have it loaded, as far as the worker knows that answers."""
    hidden_from: list[str]
    """Tenants that get an adapter of tenants by this name in its place."""
    hidden_by_model: bool
    """The policy has a model by this name, which everybody gets in its place."""


class ListingServerSeen(Told):
    name: str
    adapters: int
    """That it lists."""
    left_out: int
    """Entries of its list that are taken for none: docs/adapters.md has what is one."""
    problem: str | None
    """Why it does not say what it has, where it does not."""


class AdapterList(Told):
    enabled: bool
    adapters: list[AdapterSeen]
    """Of tenants; the newest first."""
    listed: list[ListedAdapterSeen]
    """Of servers; by model."""
    listed_left_out: int
    """How many more there are."""
    servers: list[ListingServerSeen]
    """That are asked which they list."""


class AdapterDeleted(Told):
    id: str
    deleted: bool


def operations(site: Site, room: AdapterRoom, listings: ListingRoom) -> list[tuple[Operation, Handle]]:
    async def show(request: Request) -> AdapterList:
        runtime = request.context.runtime
        if runtime.adapters is None:
            return AdapterList(enabled=False, adapters=[], listed=[], listed_left_out=0, servers=[])
        held = room.held()
        listed = [one for base in runtime.policy.models for one in listings.adapters.of(runtime.policy, base)]
        return AdapterList(
            enabled=True,
            adapters=[
                _seen(one, [name for name, ids in held.items() if one.id in ids])
                for one in reversed(room.catalogue.all())
            ],
            listed=[_listed(one, listings, room, runtime.policy) for one in listed[:MOST_LISTED]],
            listed_left_out=max(0, len(listed) - MOST_LISTED),
            servers=[
                ListingServerSeen(
                    name=name,
                    adapters=len(one.adapters),
                    left_out=one.left_out,
                    problem=listings.problem(name),
                )
                for name, one in listings.adapters.servers().items()
            ],
        )

    async def delete(request: Request) -> AdapterDeleted:
        wanted = str(request.path["id"])
        adapter = room.catalogue.get(wanted)
        if adapter is None or not await room.delete(None, wanted):
            raise NotFound(f"There is no adapter '{wanted[:80]}'.")
        actor = actor_of(request.scope, request.context.caller())
        facts = {"tenant": adapter.tenant, "sha256": adapter.sha256}
        try:
            await asyncio.to_thread(
                lambda: site.audit_log.add(actor, "adapter.deleted", adapter.model, **facts)
            )
        except OSError as error:
            log.error("the deletion of '%s' is missing from the audit log: %s", adapter.model, error)
        return AdapterDeleted(id=wanted, deleted=True)

    about, deletes = "The adapters of tenants and of servers, and which have them", "Delete anybody's adapter"
    return [
        (operation("GET", "/adapters", "listAllAdapters", about, AdapterList), show),
        (
            operation(
                "DELETE", "/adapters/{id}", "deleteAnyAdapter", deletes, AdapterDeleted, errors=(404, 503)
            ),
            delete,
        ),
    ]


def _listed(
    adapter: ListedAdapter, listings: ListingRoom, room: AdapterRoom, policy: Policy
) -> ListedAdapterSeen:
    known, servers = listings.adapters, listings.adapters.servers_of(adapter)
    return ListedAdapterSeen(
        model=adapter.model,
        base=adapter.base,
        listed_by=servers,
        ready_on=[one for one in servers if known.is_ready(one, adapter)],
        hidden_from=room.catalogue.tenants_of(adapter.base, adapter.name),
        hidden_by_model=policy.resolve(adapter.model) is not None,
    )


def _seen(adapter: Adapter, held_by: list[str]) -> AdapterSeen:
    return AdapterSeen(
        id=adapter.id,
        model=adapter.model,
        base=adapter.base,
        tenant=adapter.tenant,
        shared_with=list(adapter.shared_with),
        rank=adapter.rank,
        target_modules=list(adapter.targets),
        bytes=adapter.bytes,
        sha256=adapter.sha256,
        created_at=adapter.created_at,
        key=adapter.key_id,
        held_by=held_by,
    )
