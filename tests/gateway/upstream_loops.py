"""The loop over a call's candidates around any handler, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from gateway.admission.pools import Pools
from gateway.admission.queue import Queue
from gateway.fallback.health import HealthRegistry
from gateway.fallback.hop import Hops
from gateway.observe.metrics import Metrics
from gateway.policy.schema import Policy
from gateway.routing.router import Router
from gateway.types import Call, Chunk, Handler, WholeHandler
from gateway.upstream_loop import UpstreamLoop


def collected(send: Handler) -> WholeHandler:
    async def whole(call: Call) -> Sequence[Chunk]:
        async with aclosing(send(call)) as chunks:
            return [chunk async for chunk in chunks]

    return whole


def upstream_loop(
    send: Handler,
    policy: Policy,
    *,
    health: HealthRegistry | None = None,
    pools: Pools | None = None,
    metrics: Metrics | None = None,
    router: Router | None = None,
    quiet: float = 0.5,
    interval: float = 1.0,
) -> UpstreamLoop:
    """``send`` is asked in place of backends."""
    if pools is None:
        pools = Pools()
        pools.update(policy)
    metrics = metrics or Metrics()
    return UpstreamLoop(
        router or Router(policy, policy.backends, pools),
        Hops(policy, health or HealthRegistry()),
        Queue(pools, metrics, quiet=quiet, interval=interval),
        send,
        collected(send),
        metrics,
    )


def attempts(
    send: Handler,
    policy: Policy,
    *,
    health: HealthRegistry | None = None,
    pools: Pools | None = None,
    metrics: Metrics | None = None,
) -> Handler:
    """The same for calls that have their candidates."""
    return upstream_loop(send, policy, health=health, pools=pools, metrics=metrics).attempts
