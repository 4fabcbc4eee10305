"""Which prompt prefixes tenants share, and so what they may learn of each other by the time to the first token."""

from __future__ import annotations

from hashlib import blake2b

from gateway.policy.schema import Policy, Sharing
from gateway.types import ChatRequest

_SYSTEM = ("system", "developer")


def sharing(policy: Policy, model: str, request: ChatRequest) -> Sharing:
    """The part of ``request``'s prompt whose KV cache every tenant may reuse, at ``model``.

    A ``system`` prompt is everybody's only if it is one that the policy names: any other may hold a secret.
    """
    found = policy.models[model].prefix_sharing
    if found != "system":
        return found
    first = request.messages[0] if request.messages else {}
    named = first.get("role") in _SYSTEM and first.get("content") in policy.shared_prompts.values()
    return "system" if named else "none"


def alias(tenant: str) -> str:
    """A pseudonym of a tenant, for servers that only need to distinguish tenants."""
    return blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def block_salt(tenant: str, shared: Sharing, own: str = "") -> bytes:
    """What makes the blocks of ``tenant``'s prompts other ones than those of the same tokens: the bundled engine's salt
    (``engine/server/hints.py``), where ``own`` is the request's ``cache_salt``. Empty: they are everybody's.

    The tenant always goes in first, so that no ``cache_salt`` can yield another tenant's salt.
    """
    owner = "" if shared == "all" else alias(tenant)
    if not owner and not own:
        return b""
    digest = blake2b(owner.encode(), digest_size=32).digest()
    return blake2b(digest + own.encode("utf-8", "surrogatepass"), digest_size=16).digest()
