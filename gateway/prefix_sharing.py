"""Whose prompts' beginnings are whose: what tenants may notice of each other by how fast an answer begins."""

from __future__ import annotations

from hashlib import blake2b

from gateway.policy.schema import Policy, Sharing
from gateway.types import ChatRequest

_SYSTEM = ("system", "developer")


def sharing(policy: Policy, model: str, request: ChatRequest) -> Sharing:
    """What of ``request``'s prompt every tenant may find computed already, when ``model`` is asked.

    A ``system`` prompt is everybody's only if it is one that the policy names: any other may hold a secret.
    """
    found = policy.models[model].prefix_sharing
    if found != "system":
        return found
    first = request.messages[0] if request.messages else {}
    named = first.get("role") in _SYSTEM and first.get("content") in policy.shared_prompts.values()
    return "system" if named else "none"


def alias(tenant: str) -> str:
    """A tenant's name for servers that only need to tell one from another."""
    return blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
