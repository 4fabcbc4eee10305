"""A request, as those see it who choose a replica for it by what replicas hold of its prompt."""

from __future__ import annotations

from hashlib import blake2b
from weakref import ref

from gateway.metering.estimate import rough_estimate
from gateway.prefix_sharing import sharing
from gateway.routing.affinity import Prefix, beginning_of
from gateway.routing.held import LONGEST, PIECE, Asked
from gateway.types import Call

DEEP = 4096
"""Bytes by which a conversation is told from others that begin alike, with the same instructions."""
_BYTES_PER_TOKEN = 4
"""Of what is longer than what is looked at."""


def asked_of(call: Call, target: str) -> Asked:
    """``target``: the model's name at its servers. What one model has computed is of no use to another."""
    request = call.request
    shared = sharing(call.policy, call.policy.resolve(call.model) or call.model, request)
    beginning = beginning_of(request, call.principal.tenant, shared, LONGEST)
    model = target.encode("utf-8", "surrogatepass")
    blocks = beginning.prefix(PIECE, model).blocks
    key = blake2b(beginning.owner + model + beginning.data[:DEEP], digest_size=8).digest()
    size = max(1, len(beginning.data))
    estimate = call.estimated() or rough_estimate(request)
    tokens = max(1, estimate.prompt)
    piece = tokens * PIECE / size if size < LONGEST else PIECE / _BYTES_PER_TOKEN
    return Asked(Prefix(key, blocks), tokens, estimate.expected, piece, ref(call))
