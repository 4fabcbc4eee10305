"""``/admin/api/adapters``: the adapters of all tenants, and which servers have them."""

from __future__ import annotations

import asyncio
import logging

from gateway.adapters.adapter import Adapter
from gateway.adapters.room import AdapterRoom
from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Request, Told
from gateway.admin.site import Site, actor_of
from gateway.errors import NotFound
from gateway.web.operation import Operation

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


class AdapterList(Told):
    enabled: bool
    adapters: list[AdapterSeen]
    """The newest first."""


class AdapterDeleted(Told):
    id: str
    deleted: bool


def operations(site: Site, room: AdapterRoom) -> list[tuple[Operation, Handle]]:
    async def show(request: Request) -> AdapterList:
        if request.context.runtime.adapters is None:
            return AdapterList(enabled=False, adapters=[])
        held = room.held()
        return AdapterList(
            enabled=True,
            adapters=[
                _seen(one, [name for name, ids in held.items() if one.id in ids])
                for one in reversed(room.catalogue.all())
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

    about, deletes = "The adapters of all tenants, and which servers have them", "Delete anybody's adapter"
    return [
        (operation("GET", "/adapters", "listAllAdapters", about, AdapterList), show),
        (
            operation(
                "DELETE", "/adapters/{id}", "deleteAnyAdapter", deletes, AdapterDeleted, errors=(404, 503)
            ),
            delete,
        ),
    ]


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
