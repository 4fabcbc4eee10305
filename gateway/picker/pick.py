"""An engine for one request: by the router's order, past open breakers, with a place in its queue."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from gateway.admission.gate import Admission, admit, engine_headers
from gateway.errors import GatewayError, Overloaded, UpstreamUnavailable
from gateway.fallback.circuit_breaker import Caller, Permit
from gateway.fallback.hop import Hop
from gateway.held_prefixes.held_prefixes import salt_of
from gateway.picker.answer_usage import AnswerUsage
from gateway.picker.pool import EnginePool, Standing
from gateway.policy.schema import OpenAIBackend
from gateway.routing.score import Sent
from gateway.types import Call, Candidate, Json

_BAD = 500
"""The least status that an engine is to blame for."""
_REFUSED = 400
"""And the least that is no answer."""
_SALTED = ("/chat/completions", "/completions")
"""The paths whose requests have a ``cache_salt``."""


class NoEndpoint(UpstreamUnavailable):
    """None of those that may be picked is ready."""

    code = "no_endpoint"


class Pick:
    """An engine that was picked, and its place: to be given back, whatever happens."""

    __slots__ = (
        *("_admission", "_failed", "_permit", "_seen", "_sent", "_standing", "_usage"),
        *("call", "endpoint", "fallbacks", "hop"),
    )

    def __init__(
        self,
        standing: Standing,
        call: Call,
        hop: Hop,
        permit: Permit,
        admission: Admission,
        fallbacks: tuple[str, ...],
        *,
        seen: bool,
    ) -> None:
        """``seen``: its answer's first token will be."""
        self.call = call
        self.hop = hop
        self.endpoint = standing.endpoints[hop.candidate.target.backend]
        self.fallbacks = fallbacks
        """Others, the best first, for a gateway that tries again."""
        self._standing = standing
        self._permit = permit
        self._admission = admission
        self._failed = False
        """What has come is an error, or another engine's: it tells nothing of how fast this one answers."""
        here, scored = hop.candidate, standing.router.scored
        self._sent: Sent | None = None
        if scored is not None and scored.covers(here.model):
            self._sent = scored.sent(call, here, seen=seen and call.request.stream)
        self._seen = seen
        self._usage = AnswerUsage() if self._sent is not None else None

    @property
    def model(self) -> str:
        """As the engine knows it."""
        return self.hop.candidate.target.model

    def fields(self) -> dict[str, Json]:
        """Of the body, what the engine is to be sent in place of what it has; None: nothing."""
        request, found = self.call.request, dict[str, Json]()
        if request.model != self.model:
            found["model"] = self.model
        config = self.hop.backend
        if isinstance(config, OpenAIBackend) and config.kv_events is not None and _takes_salt(self.call):
            salt = salt_of(self.call) or None
            if salt != request.params.get("cache_salt"):
                found["cache_salt"] = salt
        return found

    def hints(self) -> dict[str, str]:
        """Headers that the engine heeds: priority, weight, deadline."""
        return engine_headers(self.call, self._admission.pool.clock()) if self.hop.is_engine else {}

    def answered(self, status: int, served: str | None) -> None:
        """The head of an answer has come. ``served``: the endpoint that gave it, as far as the gateway tells."""
        other = None if served in (None, self.endpoint) else self._other(served)
        self._failed = other is not None or status >= _REFUSED
        if other is not None:
            # The gateway came to it as the one that was picked had failed.
            self._permit.failed()
            self.call.candidate = other
            if self._standing.router.has_affinity:
                self._standing.router.record_served(self.call)
            if status >= _BAD:
                return
            hop = self._standing.hops.first(other).hop
            permit = hop.breaker.acquire(_caller(self.call), hop.backend.breaker)
            if permit is not None:
                permit.succeeded()
        elif status >= _BAD:
            self._permit.failed()
        else:
            self._permit.succeeded()

    def came(self, piece: bytes) -> None:
        """More of the answer's body."""
        if self._usage is not None and not self._failed:
            self._usage.add(piece)

    def began(self) -> None:
        """The first piece of the answer's body has come."""
        if self._failed or not self._seen:
            return
        self._admission.first_token(self.call)
        if self._sent is not None and self.call.request.stream:
            self._sent.began()

    def ended(self) -> None:
        if self._sent is not None:
            self._sent.ended(self._usage.cached() if self._usage is not None else None)
        self._permit.release()
        self._admission.lease.release()

    def _other(self, served: str | None) -> Candidate | None:
        backends = {endpoint: name for name, endpoint in self._standing.endpoints.items()}
        name = backends.get(served or "")
        return next((one for one in self.call.candidates if one.target.backend == name), None)


async def pick(
    pool: EnginePool,
    standing: Standing,
    call: Call,
    *,
    subset: Collection[str] | None,
    patience: float,
    fallbacks: int,
    seen: bool = True,
) -> Pick:
    """``subset`` are the only endpoints that may be picked. It waits for a place for ``patience`` seconds at most.
    ``seen``: the answer's first token will be.

    Raises ``NoEndpoint``, ``Overloaded``, and what the router raises.
    """
    held, request = pool.held, call.request
    if not held.tells(call.model, request):
        return await _pick(pool, standing, call, subset, patience, fallbacks, seen=seen)
    await held.look(call)
    try:
        return await _pick(pool, standing, call, subset, patience, fallbacks, seen=seen)
    finally:
        held.done(request)


async def _pick(
    pool: EnginePool,
    standing: Standing,
    call: Call,
    subset: Collection[str] | None,
    patience: float,
    fallbacks: int,
    *,
    seen: bool,
) -> Pick:
    planned = standing.router.plan(call)
    call.candidates = candidates = tuple(
        one
        for one in planned
        if (endpoint := standing.endpoints.get(one.target.backend)) is not None
        and (subset is None or endpoint in subset)
    )
    if not candidates:
        raise NoEndpoint("No engine of this pool may be picked for this request now.", retry_after=1.0)
    error: GatewayError | None = None
    wait = math.inf
    for number, candidate in enumerate(candidates):
        hop = standing.hops.first(candidate).hop
        permit = hop.breaker.acquire(_caller(call), hop.backend.breaker)
        if permit is None:
            wait = min(wait, hop.breaker.wait(_caller(call)))
            continue
        call.candidate = candidate
        try:
            admission = await _admitted(pool, call, patience)
        except Overloaded as full:
            permit.release()
            error = error or full
            continue
        except BaseException:
            permit.release()
            raise
        if candidate is not planned[0] and standing.router.has_affinity:
            standing.router.record_served(call)
        rest = _others(standing, call, candidates[number + 1 :], fallbacks)
        return Pick(standing, call, hop, permit, admission, rest, seen=seen)
    if error is not None:
        raise error
    raise NoEndpoint("All engines of this pool failed of late. Try again later.", retry_after=max(1.0, wait))


def _others(standing: Standing, call: Call, candidates: Sequence[Candidate], most: int) -> tuple[str, ...]:
    """The endpoints of those that would be asked next."""
    closed = (
        (one for one in candidates if not standing.hops.first(one).hop.breaker.wait(_caller(call)))
        if most
        else ()
    )
    return tuple(dict.fromkeys(standing.endpoints[one.target.backend] for one in closed))[:most]


async def _admitted(pool: EnginePool, call: Call, patience: float) -> Admission:
    """With a place. Raises ``Overloaded``."""
    admission = admit(call, pool.pools, pool.rules)
    lease = admission.lease
    if lease.is_granted:
        return admission
    try:
        if await lease.wait(min(patience, admission.expires - admission.pool.clock())):
            return admission
        raise Overloaded(
            f"No engine of this pool had a free place for this request within {admission.waited:.3g} s. Try again "
            "later.",
            code="queue_timeout",
            retry_after=max(1.0, admission.expected_wait),
        )
    finally:
        admission.learn_wait(call.principal.tier)
        if not lease.is_granted:
            lease.release()


def _takes_salt(call: Call) -> bool:
    return call.request.generates and call.route.partition("?")[0].endswith(_SALTED)


def _caller(call: Call) -> Caller:
    return Caller(call.principal.tenant, call.principal.key_id)
