"""A question about a request, and what was found of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.admission.pools import Pools
from gateway.errors import GatewayError
from gateway.fallback.health import HealthRegistry
from gateway.guards.guards import TenantGuards
from gateway.quota.allowance import Reservation
from gateway.quota.limits import Limit
from gateway.routing.router import Router
from gateway.types import Call, Principal
from gateway.web.context import RequestContext

PATHS = (
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/completions",
    "/v1/embeddings",
)
"""What can be explained: requests that a model answers."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request, and whose it would be."""

    key: str
    """An API key's id, or the key itself, or a token."""
    body: bytes
    path: str = PATHS[0]
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Found:
    """How far a question came, and what was decided on its way."""

    question: Question
    context: RequestContext
    principal: Principal | None = None
    call: Call | None = None
    """None: it was refused before it became one."""
    error: GatewayError | None = None
    """What it is refused with."""
    sent: Call | None = None
    """As it would be sent; None: it would not be."""
    status: int | None = None
    """Of an answer that no model is asked for."""
    used: list[tuple[Limit, int, float]] = field(default_factory=list)
    """Each limit, what counts against it before this request, and the seconds until none of that does."""
    reservation: Reservation | None = None
    guards: TenantGuards = field(default_factory=TenantGuards)
    waits: Mapping[str, Mapping[str, float | int | None]] = field(default_factory=dict)
    unjudged: frozenset[str] = frozenset()
    """What was taken to be clean as nobody was asked."""
    shared_flight: bool = False
    """The same request is in flight, and would be waited for."""
    router: Router | None = None
    health: HealthRegistry | None = None
    pools: Pools | None = None
