"""Replicas by an InferencePool, as a scripted API server tells of it and its pods to the real client library."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.policy.members import Found
from gateway.policy.schema import InferencePool
from gateway.replicas.inference_pool import ZONE, InferencePoolPods, members_of
from tests.kubernetes_api import KubernetesApi, a_pod, a_pool, kubernetes_api

pytestmark = pytest.mark.anyio

BASE = "http://pool"


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubernetesApi]:
    async with kubernetes_api() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "config")))
        yield api


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(300):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Followed:
    def __init__(self) -> None:
        self.found: Sequence[Found] | None = None

    async def follow(self) -> None:
        async for found in InferencePoolPods(
            "engines", BASE, InferencePool(name="qwen", namespace="models")
        ).follow():
            self.found = found

    async def until(self, *places: str) -> None:
        wanted = [f"http://{place}" for place in places]
        await until(lambda: self.found is not None and [one.url for one in self.found] == wanted)


@asynccontextmanager
async def following(api: KubernetesApi) -> AsyncIterator[Followed]:
    followed = Followed()
    task = asyncio.create_task(followed.follow())
    try:
        yield followed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not api.watchers)


async def test_pods_that_the_pool_selects_come_and_go(api: KubernetesApi) -> None:
    api.put_one("inferencepools", "qwen", a_pool(8100, app="qwen"))
    api.put_one("pods", "a", a_pod("10.0.0.1", app="qwen", other="x"))
    api.put_one("pods", "b", a_pod("10.0.0.9", app="else"))
    async with following(api) as followed:
        await followed.until("10.0.0.1:8100")
        await until(lambda: api.watchers == 2)
        api.put_one("pods", "c", a_pod(None, ready=False, app="qwen"))
        api.put_one("pods", "c", a_pod("10.0.0.2", app="qwen"))
        await followed.until("10.0.0.1:8100", "10.0.0.2:8100")
        api.put_one("pods", "a", a_pod("10.0.0.1", app="qwen", ending=True))
        await followed.until("10.0.0.2:8100")
        api.delete_one("pods", "c")
        await followed.until("10.0.0.1:8100")
        asked = {(one["path"], one.get("fieldSelector"), one.get("labelSelector")) for one in api.asked}
        pools = "/apis/inference.networking.k8s.io/v1/namespaces/models/inferencepools"
        pods = "/api/v1/namespaces/models/pods"
        assert asked == {(pools, "metadata.name=qwen", None), (pods, None, "app=qwen")}


async def test_a_pool_that_selects_others_or_has_other_ports_is_followed(api: KubernetesApi) -> None:
    api.put_one("pods", "a", a_pod("10.0.0.1", app="qwen"))
    api.put_one("pods", "b", a_pod("10.0.0.2", app="llama"))
    async with following(api) as followed:
        await until(lambda: api.watchers)  # of a pool that is not there yet
        api.put_one("inferencepools", "qwen", a_pool(8100, app="qwen"))
        await followed.until("10.0.0.1:8100")
        api.put_one("inferencepools", "qwen", a_pool(8100, 8101, app="llama"))
        await followed.until("10.0.0.2:8100", "10.0.0.2:8101")
        api.delete_one("inferencepools", "qwen")
        api.put_one("pods", "c", a_pod("10.0.0.3", app="llama"))
        await followed.until("10.0.0.2:8100", "10.0.0.2:8101", "10.0.0.3:8100", "10.0.0.3:8101")
        await until(lambda: api.watchers == 2)


def test_only_the_ready_are_asked_or_those_that_still_serve_where_none_is() -> None:
    starting, leaving = a_pod("10.0.0.1", ready=False), a_pod("10.0.0.2", ending=True)
    zoned = a_pod("fd00::1", **{ZONE: "a"})
    assert members_of([starting, leaving, zoned], BASE, [80]) == [Found("http://[fd00::1]:80", 1.0, "a")]
    assert members_of([starting, leaving], BASE, [80]) == [Found("http://10.0.0.2:80")]
    assert members_of([starting], BASE, [80]) == []
