"""Which texts may be shown to servers elsewhere."""

from __future__ import annotations

from gateway.types import Call


def stays(asker: Call) -> bool:
    """Whether the texts of a request are for local backends only."""
    tenant = asker.policy.tenants.get(asker.principal.tenant)
    return asker.local_only or (tenant is not None and tenant.local_only)
