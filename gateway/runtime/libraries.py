"""The large libraries that only some policies need: a worker without them is a third smaller."""

from __future__ import annotations

import asyncio
from importlib import import_module

from gateway.packages import DNS, missing
from gateway.policy.schema import GeminiBackend, Policy, Replicated


async def load_libraries(policy: Policy) -> None:
    """What is built for ``policy`` imports them where it uses them. Here a thread does it first: after an edit the
    event loop would stand still for it, a fifth of a second."""
    for name in _needed(policy):
        await asyncio.to_thread(import_module, name)


def _needed(policy: Policy) -> list[str]:
    redis = (policy.store, policy.where_caches_are) != ("memory", "memory")
    vertex = any(
        isinstance(one, GeminiBackend) and one.vertex is not None for one in policy.backends.values()
    )
    tokens = bool(policy.jwt) or policy.admin.oidc is not None or vertex
    sealed = ["cryptography.hazmat.primitives.ciphers.aead"] if policy.record.enabled else []
    found = any(
        isinstance(one, Replicated) and one.replicas is not None and one.replicas.takes_dns
        for one in policy.backends.values()
    ) and not missing(DNS)
    return [
        *sealed,
        *(["dns.asyncresolver"] if found else []),
        *(["redis.asyncio"] if redis else []),
        *(["jwt"] if tokens else []),
    ]
