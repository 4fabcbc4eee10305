"""What gateways and engines say of a backend now, from their metrics in Prometheus' text."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gateway.scaler.target import Target

PATIENCE = 3.0
"""Seconds for each of them, and to resolve their name."""
LONGEST = 32 * 2**20
"""Bytes of an answer."""
MOST = 1e12
"""Of any figure: more is none."""
GATEWAYS = (
    "tollgate_backend_requests_in_flight",
    "tollgate_backend_requests_waiting",
    "tollgate_queue_seconds_sum",
    "tollgate_queue_seconds_count",
)
ENGINES = ("vllm:kv_cache_usage_perc",)


class NoFigures(Exception):
    """Says who did not answer."""


@dataclass(frozen=True, slots=True)
class Figures:
    demand: float
    """Requests in flight and waiting, at all gateways."""
    engines: int = 0
    """That answer."""
    kv_usage: float = 0.0
    """The sum of their shares of used KV blocks."""
    queued: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Seconds and requests, of all waits in the queue until now, by the gateway's address."""


class Reader:
    def __init__(self, http: httpx.AsyncClient, token: str) -> None:
        """``token`` is of the gateways' metrics; empty where they ask for none."""
        self._http = http
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    async def read(self, target: Target) -> Figures:
        """Gateways that do not answer are taken for as busy as the others. Raises ``NoFigures`` if none does."""
        addresses = await _addresses(target.gateways)
        asked = await self._ask(addresses, self._headers, GATEWAYS, target.backend)
        told = {address: sums for address, sums in asked.items() if not isinstance(sums, str)}
        if not told:
            why = next((f": {reason}" for reason in asked.values() if isinstance(reason, str) and reason), "")
            raise NoFigures(f"no gateway behind {target.gateways} tells its metrics{why}")
        demand = sum(sums[0] + sums[1] for sums in told.values())
        queued = {address: (sums[2], sums[3]) for address, sums in told.items()}
        engines, kv_usage = await self._engines(target)
        return Figures(demand * len(addresses) / len(told), engines, kv_usage, queued)

    async def _engines(self, target: Target) -> tuple[int, float]:
        """None at all is what zero replicas are."""
        if not target.engines:
            return 0, 0.0
        try:
            addresses = await _addresses(target.engines)
        except NoFigures:
            return 0, 0.0
        told = [
            sums for sums in (await self._ask(addresses, {}, ENGINES)).values() if not isinstance(sums, str)
        ]
        return len(told), sum(usage for (usage,) in told)

    async def _ask(
        self,
        addresses: Sequence[str],
        headers: Mapping[str, str],
        names: Sequence[str],
        backend: str | None = None,
    ) -> dict[str, tuple[float, ...] | str]:
        """By address, the sums of these metrics, or why there are none; empty for one that is away."""

        async def one(address: str) -> tuple[float, ...] | str:
            try:
                async with (
                    asyncio.timeout(PATIENCE),
                    self._http.stream("GET", f"http://{address}/metrics", headers=dict(headers)) as answer,
                ):
                    if answer.status_code in (401, 403):
                        return (
                            f"{address} does not tell its metrics to us ({answer.status_code}): set "
                            "TOLLGATE_METRICS_TOKEN to what it has"
                        )
                    if answer.status_code != 200:
                        return ""
                    text = bytearray()
                    async for part in answer.aiter_bytes():
                        text += part
                        if len(text) > LONGEST:
                            return f"{address} tells too much"
                return _sums(text.decode("utf-8", "replace"), names, backend)
            except (httpx.HTTPError, TimeoutError):
                return ""
            except ValueError as error:
                return f"what {address} tells are no metrics in Prometheus' text: {error}"

        return dict(zip(addresses, await asyncio.gather(*map(one, addresses)), strict=True))


async def _addresses(place: str) -> list[str]:
    """Raises ``NoFigures``."""
    host, _, port = place.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PATIENCE):
            found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError) as error:
        raise NoFigures(f"{host} cannot be resolved: {error or 'it took too long'}") from None
    hosts = sorted({str(address[0]) for *_, address in found})
    return [f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts]


def _sums(text: str, names: Sequence[str], backend: str | None) -> tuple[float, ...]:
    """Of all samples of each name that are ``backend``'s or its replicas', which are called ``NAME@HOST:PORT``; None:
    of all. Raises ``ValueError`` for a text that is none, or says impossible things."""
    sums = dict.fromkeys(names, 0.0)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name not in sums:
                    continue
                whose = sample.labels.get("backend", "")
                if backend is None or backend in (whose, whose.rpartition("@")[0]):
                    if not 0 <= sample.value < MOST:
                        raise ValueError(f"{sample.name} is {sample.value}")
                    sums[sample.name] += sample.value
    except (KeyError, IndexError) as error:
        raise ValueError(repr(error)) from None
    return tuple(sums.values())
