"""The routes of ``/admin``, and what this worker answers to its siblings about itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.admin.api import (
    audit,
    backends,
    caches,
    evaluation,
    feedback,
    keys,
    live,
    models,
    policies,
    receipts,
    tenants,
    usage,
)
from gateway.admin.endpoint import Handle
from gateway.admin.site import Site
from gateway.admin.snapshot import snapshot
from gateway.control.peers import Handler
from gateway.runtime.worker_state import WorkerState
from gateway.web.operation import Operation


def operations(site: Site) -> list[tuple[Operation, Handle]]:
    """Every operation of the API, with what answers it."""
    parts = (
        keys,
        usage,
        feedback,
        evaluation,
        receipts,
        policies,
        models,
        backends,
        tenants,
        caches,
        audit,
        live,
    )
    return [pair for part in parts for pair in part.operations(site)]


def handlers(site: Site, state: WorkerState) -> dict[str, Handler]:
    """What the workers ask one another (``gateway.control.peers``)."""

    async def own_snapshot(_: Mapping[str, Any]) -> dict[str, Any]:
        return snapshot(state)

    async def own_limits(asked: Mapping[str, Any]) -> dict[str, Any]:
        return await tenants.limits_used(site, asked)

    async def own_key(asked: Mapping[str, Any]) -> dict[str, Any]:
        return await keys.key_version(site, asked)

    async def own_drains(_: Mapping[str, Any]) -> dict[str, Any]:
        return {"drained": sorted(await state.replicas.look())} if state.replicas is not None else {}

    return {"drains": own_drains, "snapshot": own_snapshot, "limits": own_limits, "key": own_key}
