"""Replicas by EndpointSlices, as a scripted API server tells them to the real client library."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.backoff import Backoff
from gateway.policy.members import Found
from gateway.policy.schema import KubernetesService
from gateway.replicas.kubernetes import EndpointSlices, found_in
from tests.kubernetes_api import KubernetesApi, endpoint, kubernetes_api

pytestmark = pytest.mark.anyio

BASE = "http://pool/v1"


class Followed:
    """What a source has found last."""

    def __init__(self) -> None:
        self.found: Sequence[Found] | None = None

    async def follow(self, source: EndpointSlices) -> None:
        async for found in source.follow():
            self.found = found

    async def until(self, *urls: str) -> None:
        await until(lambda: self.found is not None and [one.url for one in self.found] == list(urls))


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(300):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@asynccontextmanager
async def following(api: KubernetesApi) -> AsyncIterator[Followed]:
    followed = Followed()
    service = KubernetesService(service="vllm", namespace="models", port="http")
    task = asyncio.create_task(followed.follow(EndpointSlices("pool", BASE, service)))
    try:
        yield followed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not api.watchers)


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubernetesApi]:
    async with kubernetes_api() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "config")))
        yield api


def at(host: str, port: int = 8000) -> str:
    return f"http://{host}:{port}/v1"


async def test_pods_that_come_and_go_are_told_at_once(api: KubernetesApi) -> None:
    api.put("vllm-1", endpoint("10.0.0.1"))
    async with following(api) as followed:
        await followed.until(at("10.0.0.1"))
        await until(lambda: api.watchers)
        api.put("vllm-2", endpoint("10.0.0.2"))
        await followed.until(at("10.0.0.1"), at("10.0.0.2"))
        api.put("vllm-1", endpoint("10.0.0.3"))
        await followed.until(at("10.0.0.2"), at("10.0.0.3"))
        api.delete("vllm-2")
        await followed.until(at("10.0.0.3"))
        api.delete("vllm-1")
        await followed.until()
        first = api.asked[0]
        assert first["path"] == "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
        assert first["labelSelector"] == "kubernetes.io/service-name=vllm"
        assert api.lists == 1, "what changes is watched, and not listed"


async def test_a_watch_that_ends_goes_on_from_its_bookmark(api: KubernetesApi) -> None:
    api.put("vllm-1", endpoint("10.0.0.1"))
    async with following(api) as followed:
        await until(lambda: api.watchers)
        api.bookmark()
        api.end_watches()
        await until(lambda: len(api.asked) == 3 and api.watchers)
        assert (api.lists, api.asked[-1]["resourceVersion"]) == (1, "102")
        api.put("vllm-1", endpoint("10.0.0.2"))
        await followed.until(at("10.0.0.2"))


async def test_what_has_expired_is_listed_again(api: KubernetesApi) -> None:
    """While it is watched, and when a watch is to go on from there."""
    api.put("vllm-1", endpoint("10.0.0.1"))
    async with following(api) as followed:
        await until(lambda: api.watchers)
        api.slices["vllm-1"]["endpoints"] = [endpoint("10.0.0.2")]  # nobody is told
        api.expire()
        await followed.until(at("10.0.0.2"))
        assert api.lists == 2
        await until(lambda: api.watchers)
        api.end_watches()
        api._oldest = 10**6
        await until(lambda: api.lists > 2)
        api._oldest = 0


async def test_who_may_not_read_keeps_what_is_known_and_asks_again(
    api: KubernetesApi, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.replicas.kubernetes_watch._AGAIN", Backoff(0.01, most=0.05))
    api.put("vllm-1", endpoint("10.0.0.1"))
    async with following(api) as followed:
        await until(lambda: api.watchers)
        api.forbids = True
        api.end_watches()
        await until(lambda: "endpointslices is forbidden" in caplog.text)
        assert followed.found == [Found(at("10.0.0.1"))]
        api.put("vllm-2", endpoint("10.0.0.2"))
        api.forbids = False
        await followed.until(at("10.0.0.1"), at("10.0.0.2"))


async def test_a_long_list_comes_in_pages(api: KubernetesApi) -> None:
    api.page = 2
    for number in range(5):
        api.put(f"vllm-{number}", endpoint(f"10.0.0.{number}"))
    async with following(api) as followed:
        await followed.until(*(at(f"10.0.0.{number}") for number in range(5)))
        assert api.lists == 3
        await until(lambda: api.watchers)


def slice_of(*endpoints: dict[str, Any], ports: Any = ({"name": "http", "port": 8000},)) -> dict[str, Any]:
    return {"metadata": {"name": "s"}, "ports": ports, "endpoints": list(endpoints)}


def test_only_the_ready_are_asked_or_those_that_still_serve_where_none_is() -> None:
    starting = endpoint("10.0.0.1", ready=False, serving=False)
    leaving = endpoint("10.0.0.2", ready=False, serving=True, terminating=True)
    unknown = {"addresses": ["10.0.0.3"]}  # no conditions: it counts as ready
    assert found_in([slice_of(starting, leaving, unknown)], BASE, None) == [Found(at("10.0.0.3"))]
    assert found_in([slice_of(starting, leaving)], BASE, None) == [Found(at("10.0.0.2"))]
    assert found_in([slice_of(starting)], BASE, None) == []


def test_ports_by_name_or_number_zones_by_hint_and_addresses_once() -> None:
    ports = [{"name": "metrics", "port": 9000}, {"name": "http", "port": 8000}]
    one = slice_of(endpoint("10.0.0.1", zone="a", hint="b"), endpoint("fd00::1", zone="a"), ports=ports)
    for wanted in ("http", "8000"):
        assert found_in([one, one], BASE, wanted) == [
            Found(at("10.0.0.1"), 1.0, "b"),
            Found("http://[fd00::1]:8000/v1", 1.0, "a"),
        ]
    assert found_in([one], BASE, None)[0].url == at("10.0.0.1", 9000)
    assert found_in([one], BASE, "grpc") == []
    assert found_in([slice_of(endpoint("10.0.0.1"), ports=None)], BASE, None) == []
