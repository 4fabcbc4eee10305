"""Replicas by an InferencePool of the Gateway API Inference Extension: the ready pods that it selects, at its ports.

https://gateway-api-inference-extension.sigs.k8s.io/api-types/inferencepool/
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from gateway.policy.members import Found
from gateway.policy.schema import InferencePool
from gateway.replicas.kubernetes_watch import Thing, Watch, own_namespace
from gateway.replicas.source import address

log = logging.getLogger(__name__)

GROUP, VERSION, PLURAL = "inference.networking.k8s.io", "v1", "inferencepools"
ZONE = "topology.kubernetes.io/zone"
"""A label that Kubernetes gives pods, as their nodes have it."""


class Spec(NamedTuple):
    """What says which pods are members."""

    labels: tuple[tuple[str, str], ...]
    ports: tuple[int, ...]


class InferencePoolPods:
    """One watch is of the pool, and one of its pods: another begins where it selects others."""

    def __init__(self, backend: str, base_url: str, pool: InferencePool) -> None:
        self._backend = backend
        self._base_url = base_url
        self._pool = pool

    async def follow(self) -> AsyncIterator[Sequence[Found]]:
        loop = asyncio.get_running_loop()
        changes: asyncio.Queue[tuple[Spec | None, Mapping[str, Thing]]] = asyncio.Queue()

        def tell(spec: Spec | None, things: Mapping[str, Thing]) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(changes.put_nowait, (spec, things))

        watches = [Watch(self._backend, self._ask_pool, partial(tell, None))]
        watches[0].start()
        current: Spec | None = None
        try:
            while True:
                spec, things = await changes.get()
                if spec is None:
                    new = self._spec(things.get(self._pool.name))
                    if new is not None and new != current:
                        current = new
                        for old in watches[1:]:
                            old.stop()
                        pods = Watch(self._backend, partial(self._ask_pods, new), partial(tell, new))
                        watches[1:] = [pods]
                        pods.start()
                elif spec == current:  # else a watch that was ended has told of it
                    yield members_of(things.values(), self._base_url, spec.ports)
        finally:
            for watch in watches:
                watch.stop()

    def _spec(self, pool: Thing | None) -> Spec | None:
        """None where there is no such pool, or it selects nothing: the replicas stay as they are."""
        spec = (pool or {}).get("spec") or {}
        labels = (spec.get("selector") or {}).get("matchLabels") or {}
        ports = tuple(int(one["number"]) for one in spec.get("targetPorts") or ())
        if not labels or not ports:
            what = "is not there" if pool is None else "selects no pods: give it matchLabels and targetPorts"
            log.warning("InferencePool '%s' of backend '%s' %s", self._pool.name, self._backend, what)
            return None
        return Spec(tuple(sorted(labels.items())), ports)

    def _namespace(self) -> str:
        return self._pool.namespace or own_namespace()

    def _ask_pool(self, api: Any, **more: Any) -> Any:
        from kubernetes import client

        return client.CustomObjectsApi(api).list_namespaced_custom_object(
            *(GROUP, VERSION, self._namespace(), PLURAL),
            field_selector=f"metadata.name={self._pool.name}",
            **more,
        )

    def _ask_pods(self, spec: Spec, api: Any, **more: Any) -> Any:
        from kubernetes import client

        selector = ",".join(f"{name}={value}" for name, value in spec.labels)
        return client.CoreV1Api(api).list_namespaced_pod(self._namespace(), label_selector=selector, **more)


def members_of(pods: Iterable[Thing], base_url: str, ports: Sequence[int]) -> list[Found]:
    """Those that are ready, or, where none is, those that still serve while they end."""
    ready: set[Found] = set()
    ending: set[Found] = set()
    for pod in pods:
        metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
        host = status.get("podIP")
        conditions = {one.get("type"): one.get("status") for one in status.get("conditions") or ()}
        if not host or conditions.get("Ready") != "True":
            continue
        zone = (metadata.get("labels") or {}).get(ZONE)
        its = {Found(address(base_url, host, port), 1.0, zone) for port in ports}
        if metadata.get("deletionTimestamp"):
            ending |= its
        else:
            ready |= its
    return sorted(ready or ending, key=lambda one: (one.url, one.zone or ""))
