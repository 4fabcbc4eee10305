"""``/admin/api/caches``: have answers forgotten."""

from __future__ import annotations

from gateway.admin.api.operation import operation
from gateway.admin.endpoint import Handle, Request, Strict, Told
from gateway.admin.site import Site
from gateway.policy.schema.values import Name
from gateway.web.operation import Operation


class Flush(Strict):
    tenant: Name


class Flushed(Told):
    tenant: str
    in_force: bool
    """Nothing that was cached for the tenant before is found any more."""


def operations(site: Site) -> list[tuple[Operation, Handle]]:
    async def flush(request: Request) -> Flushed:
        tenant = request.body(Flush).tenant
        result = await site.change(request.context, request.scope, do="flush", tenant=tenant)
        return Flushed(tenant=tenant, in_force=result.get("confirmed", False))

    return [
        (
            operation(
                *("POST", "/caches/flush", "flushCaches", "Forget what was cached for a tenant", Flushed),
                body=Flush,
                errors=(409,),
            ),
            flush,
        )
    ]
