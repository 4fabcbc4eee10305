"""``backends.<name>.replicas``: several servers that are one backend."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gateway.policy.schema.values import Count, Duration, Form, Frozen, HttpUrl, Name, Text, Timeout, Weight

_Share = Annotated[float, Field(strict=True, gt=0, le=100, allow_inf_nan=False)]


def _resolver(text: str) -> str:
    host, _, port = text.rpartition(":")
    try:
        ip_address(host.strip("[]"))
        if not 0 < int(port) < 65536:
            raise ValueError
    except ValueError:
        raise ValueError("should be address and port of a DNS server, such as 127.0.0.1:8600") from None
    return text


class ReplicaServer(Frozen):
    """One that is written down."""

    url: HttpUrl
    """As ``base_url``."""
    weight: Weight = 1.0
    zone: Name | None = None


class KubernetesService(Frozen):
    """A Service whose EndpointSlices say which pods there are."""

    service: Name
    namespace: Name | None = None
    """The gateway's own, where none is named."""
    port: Text | None = None
    """Name or number; the first that there is, where none is named."""


class InferencePool(Frozen):
    """Of the Gateway API Inference Extension (``inference.networking.k8s.io/v1``), whose pods they are."""

    name: Name
    namespace: Name | None = None
    """The gateway's own, where none is named."""


class Outliers(Frozen):
    """When a replica that does worse than the others gets no requests for a while. The names are Envoy's."""

    consecutive_5xx: Count = 5
    """Failures in a row, of whatever kind."""
    interval: Timeout = 10.0
    """How often success rates are compared."""
    base_ejection_time: Timeout = 30.0
    """Times how often it was ejected of late."""
    max_ejection_time: Timeout = 300.0
    max_ejection_percent: _Share = 30.0
    """Of the replicas, though at least one may be; and the last one never is."""
    success_rate_minimum_hosts: Count = 5
    success_rate_request_volume: Count = 100
    """Of a replica in ``interval``, at least."""
    success_rate_stdev_factor: Annotated[float, Field(strict=True, gt=0, le=100, allow_inf_nan=False)] = 1.9
    """How many standard deviations below the mean is too far."""


class Replicas(Frozen):
    """Which servers they are: written down, or found by one of the other ways; and how they share the load."""

    servers: tuple[ReplicaServer, ...] = ()
    dns: Text | None = None
    """A name whose addresses (A, AAAA) they are; scheme, port and path are ``base_url``'s."""
    srv: Text | None = None
    """A name whose SRV records have hosts, ports and weights; scheme and path are ``base_url``'s."""
    kubernetes: KubernetesService | None = None
    """A Service whose ready endpoints they are; scheme and path are ``base_url``'s."""
    pool: InferencePool | None = None
    """An InferencePool whose ready pods they are, at its ports; scheme and path are ``base_url``'s."""
    resolver: Annotated[str, AfterValidator(_resolver), Form(r"^[0-9A-Fa-f:.\[\]]+:[0-9]+$")] | None = None
    """The DNS server that is asked; the machine's own, where none is named."""
    every: Timeout = 5.0
    """How often the DNS is asked."""
    slow_start: Duration = 10.0
    """How long a replica that comes, or comes back, takes to its whole share."""
    ready_within: Duration = 60.0
    """How long one that comes may take to its first answer; then it gets requests all the same. 0: it is not asked."""
    outliers: Outliers | None = None

    @property
    def takes_kubernetes(self) -> bool:
        """Whether its client has to be installed."""
        return self.kubernetes is not None or self.pool is not None

    @property
    def takes_dns(self) -> bool:
        """Whether the machine's own resolver is not enough."""
        return self.srv is not None or self.resolver is not None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        ways = [way for way in ("servers", "dns", "srv", "kubernetes", "pool") if getattr(self, way)]
        if len(ways) != 1:
            said = " and ".join(ways) or "none of them"
            raise ValueError(
                f"should say where the servers are by one of servers, dns, srv, kubernetes and pool, not by {said}"
            )
        urls = [server.url.rstrip("/") for server in self.servers]
        if twice := sorted({url for url in urls if urls.count(url) > 1}):
            raise ValueError(f"has {twice[0]} twice")
        return self


def _listed(given: Any) -> Any:
    if isinstance(given, list | tuple):
        return {"servers": [{"url": url} for url in given]}
    return given


WrittenReplicas = Annotated[
    Replicas,
    BeforeValidator(
        _listed, json_schema_input_type=Annotated[tuple[HttpUrl, ...], Field(min_length=1)] | Replicas
    ),
]
"""A list of addresses is short for ``servers``."""


def first_address(given: Any) -> str | None:
    """The address of the first server that is written down, before anything is checked."""
    listed = given.get("servers") if isinstance(given, Mapping) else given
    first = listed[0] if isinstance(listed, list | tuple) and listed else None
    url = first.get("url") if isinstance(first, Mapping) else first
    return url if isinstance(url, str) else None
