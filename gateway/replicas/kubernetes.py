"""Replicas by Kubernetes: the ready endpoints of a Service, from its EndpointSlices.

https://kubernetes.io/docs/concepts/services-networking/endpoint-slices/
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gateway.policy.members import Found
from gateway.policy.schema import KubernetesService
from gateway.replicas.kubernetes_watch import Thing, Watch, own_namespace
from gateway.replicas.source import address


class EndpointSlices:
    def __init__(self, backend: str, base_url: str, service: KubernetesService) -> None:
        self._backend = backend
        self._base_url = base_url
        self._service = service

    async def follow(self) -> AsyncIterator[Sequence[Found]]:
        loop = asyncio.get_running_loop()
        changes: asyncio.Queue[Sequence[Found]] = asyncio.Queue()

        def tell(slices: Mapping[str, Thing]) -> None:
            found = found_in(slices.values(), self._base_url, self._service.port)
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(changes.put_nowait, found)

        watch = Watch(self._backend, self._ask, tell)
        watch.start()
        try:
            while True:
                yield await changes.get()
        finally:
            watch.stop()

    def _ask(self, api: Any, **more: Any) -> Any:
        from kubernetes import client

        return client.DiscoveryV1Api(api).list_namespaced_endpoint_slice(
            self._service.namespace or own_namespace(),
            label_selector=f"kubernetes.io/service-name={self._service.service}",
            **more,
        )


def found_in(slices: Iterator[Thing] | Any, base_url: str, port: str | None) -> list[Found]:
    """Those that are ready, or, where none is, those that still serve while they end, as kube-proxy has it."""
    ready: set[Found] = set()
    ending: set[Found] = set()
    for one in slices:
        number = _port(one, port)
        if number is None:
            continue
        for endpoint in one.get("endpoints") or ():
            conditions = endpoint.get("conditions") or {}
            zone = _zone(endpoint)
            its = {
                Found(address(base_url, host, number), 1.0, zone)
                for host in endpoint.get("addresses", ())[:1]
            }
            if conditions.get("ready") is not False:
                ready |= its
            elif conditions.get("serving") and conditions.get("terminating"):
                ending |= its
    return sorted(ready or ending, key=lambda one: (one.url, one.zone or ""))


def _port(one: Thing, wanted: str | None) -> int | None:
    """The number of the port that is ``wanted``, by name or number; of the first, where none is."""
    for port in one.get("ports") or ():
        if port.get("port") is not None and wanted in (None, port.get("name"), str(port["port"])):
            return int(port["port"])
    return None


def _zone(endpoint: Mapping[str, Any]) -> str | None:
    """The one that it is meant for (topology aware routing), else the one where it is."""
    hints = (endpoint.get("hints") or {}).get("forZones") or ()
    return hints[0]["name"] if hints else endpoint.get("zone")
