"""Five times what the backend can take: the highest tier does not notice, the lowest is told when to come back."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import OPERATOR
from tests.e2e.gateways import serving
from tests.serving import chat, key

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.deadlines]

PLACES = 10
FIRST = 0.4
SECONDS = FIRST + 9 * 0.02
"""What one answer takes: ten chunks."""
CAPACITY = PLACES / SECONDS

POLICY: dict[str, Any] = {
    "version": 1,
    "backends": {
        "model": {
            "kind": "fake",
            "max_concurrency": PLACES,
            "first_token_delay": f"{FIRST:g}s",
            "token_delay": "20ms",
            "script": [{"reply": "one two three four five six seven eight nine ten"}],
        }
    },
    "models": {"m": {"targets": [{"backend": "model", "model": "m"}]}},
    "tiers": {
        "enterprise": {"priority": 2, "weight": 8, "max_wait": "30s"},
        "pro": {"priority": 1, "weight": 3, "max_wait": "2s", "on_saturation": {"action": "wait", "at": 0.8}},
        "free": {
            "priority": 0,
            "weight": 1,
            "max_wait": "1s",
            "on_saturation": {"action": "shed", "at": 0.6},
        },
    },
    "tenants": {name: {"tier": name} for name in ("enterprise", "pro", "free")},
    "keys": [key(f"tg-{name}", name, tenant=name) for name in ("enterprise", "pro", "free")],
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("overload"), POLICY) as url:
        yield url


class Load:
    def __init__(self, url: str, client: httpx.AsyncClient) -> None:
        self._url = url
        self._client = client
        self.first: dict[str, list[float]] = {}
        self.refused: dict[str, list[float]] = {}
        self.broken: list[str] = []

    async def ask(self, tier: str) -> None:
        started = time.perf_counter()
        async with self._client.stream(
            "POST",
            f"{self._url}/v1/chat/completions",
            json=chat("m", stream=True),
            headers={"authorization": f"Bearer tg-{tier}"},
        ) as answer:
            if answer.status_code == 503:
                await answer.aread()
                self.refused.setdefault(tier, []).append(float(answer.headers["retry-after"]))
                return
            first = 0.0
            text = ""
            async for line in answer.aiter_lines():
                if line.startswith("data: {") and not first:
                    first = time.perf_counter() - started
                text += line
            if "[DONE]" in text:
                self.first.setdefault(tier, []).append(first)
            elif '"error"' in text:
                self.refused.setdefault(tier, []).append(1.0)
            else:
                self.broken.append(text[-200:])

    async def offer(self, tier: str, per_second: float, seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(round(per_second * seconds)):
                group.create_task(self.ask(tier))
                await asyncio.sleep(1 / per_second)


async def test_overload(gateway: str) -> None:
    limits = httpx.Limits(max_connections=2000, max_keepalive_connections=50)
    async with httpx.AsyncClient(limits=limits, timeout=300, trust_env=False) as client:
        alone = Load(gateway, client)
        await alone.offer("enterprise", 0.2 * CAPACITY, 3.0)
        load = Load(gateway, client)
        async with asyncio.timeout(300), asyncio.TaskGroup() as group:
            for tier, share in (("enterprise", 0.2), ("pro", 0.8), ("free", 4.0)):
                group.create_task(load.offer(tier, share * CAPACITY, 6.0))
        metrics = (await client.get(f"{gateway}/metrics", headers=OPERATOR)).text
    assert not alone.refused and not load.broken
    assert not load.refused.get("enterprise"), "what fits is not refused"
    unloaded = statistics.median(alone.first["enterprise"])
    waits = sorted(load.first["enterprise"])
    assert waits[int(0.99 * (len(waits) - 1))] <= 1.5 * unloaded, waits[-5:]
    assert len(load.refused["free"]) > 0.5 * 4.0 * CAPACITY * 6.0, "most of the free tier is shed"
    assert all(1 <= wait <= 60 for wait in load.refused["free"])
    assert len(load.first["pro"]) > len(load.first.get("free", [])) * 0.5
    assert 'tollgate_backend_requests_in_flight{backend="model"} 0.0' in metrics, "every place is free again"
    assert 'tollgate_backend_requests_waiting{backend="model"} 0.0' in metrics
