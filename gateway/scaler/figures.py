"""What gateways and engines say of a backend now, from their metrics in Prometheus' text."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gateway.scaler.target import Target

PATIENCE = 3.0
"""Seconds for each of them, and to resolve their name."""


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
    queued: tuple[float, float] = (0.0, 0.0)
    """Seconds and requests, of all waits in the queue until now."""


class Reader:
    def __init__(self, http: httpx.AsyncClient, token: str) -> None:
        """``token`` is of the gateways' metrics; empty where they ask for none."""
        self._http = http
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    async def read(self, target: Target) -> Figures:
        """Gateways that do not answer are taken for as busy as the others. Raises ``NoFigures`` if none does."""
        addresses = await _addresses(target.gateways)
        texts = [text for text in await self._texts(addresses, self._headers) if text is not None]
        if not texts:
            raise NoFigures(f"no gateway behind {target.gateways} tells its metrics")
        label = {"backend": target.backend}
        demand = sum(
            _total(text, f"tollgate_backend_requests_{state}", label)
            for text in texts
            for state in ("in_flight", "waiting")
        )
        seconds, waits = (
            sum(_total(text, f"tollgate_queue_seconds_{what}", label) for text in texts)
            for what in ("sum", "count")
        )
        engines, kv_usage = await self._engines(target)
        return Figures(demand * len(addresses) / len(texts), engines, kv_usage, (seconds, waits))

    async def _engines(self, target: Target) -> tuple[int, float]:
        """None at all is what zero replicas are."""
        if not target.engines:
            return 0, 0.0
        try:
            addresses = await _addresses(target.engines)
        except NoFigures:
            return 0, 0.0
        texts = [text for text in await self._texts(addresses, {}) if text is not None]
        return len(texts), sum(_total(text, "vllm:kv_cache_usage_perc", {}) for text in texts)

    async def _texts(self, addresses: Sequence[str], headers: dict[str, str]) -> list[str | None]:
        async def one(address: str) -> str | None:
            try:
                answer = await self._http.get(f"http://{address}/metrics", headers=headers, timeout=PATIENCE)
            except httpx.HTTPError:
                return None
            if answer.status_code in (401, 403):
                raise NoFigures(
                    f"{address} does not tell its metrics to us ({answer.status_code}): set TOLLGATE_METRICS_TOKEN "
                    "to what it has"
                )
            return answer.text if answer.status_code == 200 else None

        return list(await asyncio.gather(*map(one, addresses)))


async def _addresses(place: str) -> list[str]:
    """Raises ``NoFigures``."""
    host, _, port = place.rpartition(":")
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PATIENCE):
            found = await loop.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, TimeoutError) as error:
        raise NoFigures(f"{host} cannot be resolved: {error or 'it took too long'}") from None
    hosts = sorted({str(address[0]) for *_, address in found})
    return [f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts]


def _total(text: str, name: str, labels: dict[str, str]) -> float:
    """Of all samples of that ``name`` which have these ``labels``. Raises ``NoFigures`` for a text that is none."""
    try:
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            if name.startswith(family.name)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )
    except (ValueError, KeyError, IndexError) as error:
        raise NoFigures(f"what it tells are no metrics in Prometheus' text: {error}") from None
