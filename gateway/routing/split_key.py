"""What keeps its target: the end user, the conversation or the tenant of a request, as a hash."""

from __future__ import annotations

from hashlib import blake2b

from gateway.observe.ended import end_user
from gateway.policy.schema import SplitBy
from gateway.routing.affinity import written
from gateway.types import Call, Json

_LONGEST = 4096
"""Bytes of a conversation's beginning that tell it from others."""


def split_key(call: Call, by: SplitBy) -> bytes:
    """The same for all requests that are to stay together; tenants' are never the same.

    A user is who ``user``, ``safety_identifier`` or ``metadata.user_id`` name; where they name nobody, each
    conversation counts as one, and not its key: an application that names no users would be one.
    """
    tenant = call.principal.tenant
    if by == "tenant":
        return _digest(b"tenant", tenant, b"")
    user = end_user(call.request.params) if by == "user" and call.request.params else ""
    if user:
        return _digest(b"user", tenant, user.encode("utf-8", "surrogatepass"))
    return _digest(b"conversation", tenant, _beginning(call))


def _beginning(call: Call) -> bytes:
    """Up to the first thing that a user says: what follows differs from request to request."""
    request = call.request
    first: Json = request.prompt
    if request.messages is not None:
        messages = []
        for message in request.messages:
            messages.append(message)
            if message.get("role") == "user":
                break
        first = messages
    return written(first, _LONGEST)


def _digest(kind: bytes, tenant: str, rest: bytes) -> bytes:
    return blake2b(b"\0".join((kind, tenant.encode("utf-8", "surrogatepass"), rest)), digest_size=8).digest()
