"""What the scaler makes of gateways that say too little, too much, or nonsense."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from aiohttp import web

from gateway.scaler import figures
from gateway.scaler.figures import NoFigures, Reader
from gateway.scaler.history import History
from gateway.scaler.target import Target
from gateway.scaler.watcher import Watcher

pytestmark = pytest.mark.anyio

TARGET = Target("engine", "gateways:1", 8, engines="engines:1", queue_seconds=2, forecast=False)


def page(in_flight: float | str, *, seconds: float = 0, waits: float = 0, backend: str = "engine") -> str:
    label = f'{{backend="{backend}"}}'
    return (
        f"# TYPE tollgate_backend_requests_in_flight gauge\ntollgate_backend_requests_in_flight{label} {in_flight}\n"
        f"# TYPE tollgate_queue_seconds histogram\ntollgate_queue_seconds_sum{label} {seconds}\n"
        f"tollgate_queue_seconds_count{label} {waits}\n"
    )


class Pods:
    """Each answers at an address of its own with its page, status or behaviour."""

    def __init__(self) -> None:
        self.gateways: list[str | int | None] = []
        self.engines: list[str | int | None] = []
        self._runners: list[web.AppRunner] = []
        self._places: dict[tuple[str, int], str] = {}

    async def addresses(self, place: str) -> list[str]:
        kind = place.removesuffix(":1")
        return [await self._place(kind, index) for index in range(len(getattr(self, kind)))]

    async def _place(self, kind: str, index: int) -> str:
        if (kind, index) not in self._places:

            async def answer(request: web.Request) -> web.StreamResponse:
                said = getattr(self, kind)[index]
                if isinstance(said, int):
                    return web.Response(status=said)
                if said is not None:
                    return web.Response(text=said)
                response = web.StreamResponse()
                await response.prepare(request)
                while True:  # it drips
                    await response.write(b"#\n")
                    await asyncio.sleep(0.01)

            app = web.Application()
            app.router.add_get("/metrics", answer)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            self._runners.append(runner)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self._places[kind, index] = f"127.0.0.1:{runner.addresses[0][1]}"
        return self._places[kind, index]

    async def aclose(self) -> None:
        for runner in self._runners:
            await runner.cleanup()


@pytest.fixture
async def pods(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pods]:
    found = Pods()
    monkeypatch.setattr(figures, "_addresses", found.addresses)
    yield found
    await found.aclose()


@pytest.fixture
async def reader() -> AsyncIterator[Reader]:
    async with httpx.AsyncClient(trust_env=False) as http:
        yield Reader(http, "")


@pytest.mark.parametrize(
    "bad",
    [page("NaN"), page("+Inf"), page(-3), page(1e300), "<html>a proxy</html>", 401, 500],
    ids=["nan", "inf", "negative", "huge", "html", "refuses", "fails"],
)
async def test_one_that_talks_nonsense_is_taken_for_as_busy_as_the_others(
    pods: Pods, reader: Reader, bad: str | int
) -> None:
    pods.gateways = [page(6), bad]
    pods.engines = ["vllm:kv_cache_usage_perc 0.5\n", "vllm:kv_cache_usage_perc NaN\n"]
    found = await reader.read(TARGET)
    assert (found.demand, found.engines, found.kv_usage) == (12, 1, 0.5)
    pods.gateways = [bad]
    with pytest.raises(NoFigures, match="no gateway behind gateways:1 tells its metrics"):
        await reader.read(TARGET)


async def test_one_that_never_ends_its_answer_is_not_waited_for(
    pods: Pods, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "PATIENCE", 0.5)
    pods.gateways = [None]
    with pytest.raises(NoFigures):
        await reader.read(TARGET)
    monkeypatch.setattr(figures, "PATIENCE", 300)
    monkeypatch.setattr(figures, "LONGEST", 20)
    with pytest.raises(NoFigures, match="tells too much"):
        await reader.read(TARGET)


async def test_a_backends_replicas_are_its_demand(pods: Pods, reader: Reader) -> None:
    pods.gateways = [page(2, backend="engine@10.0.0.1:8000") + page(3, backend="engine@10.0.0.2:8000")]
    pods.gateways += [page(1) + page(50, backend="engine-b") + page(50, backend="engine-b@10.0.0.1:8000")]
    assert (await reader.read(TARGET)).demand == 6


async def test_waits_of_a_gateway_that_was_not_read_before_are_not_of_now(pods: Pods, reader: Reader) -> None:
    watcher = Watcher("a/b", TARGET, reader, History())

    async def wait() -> float:
        await watcher.look()
        return watcher.metrics()["queue-wait"]

    pods.engines = ["vllm:kv_cache_usage_perc 0\n"]
    pods.gateways = [page(1, seconds=10, waits=10), 503]
    assert await wait() == 0
    pods.gateways = [page(1, seconds=20, waits=20), page(1, seconds=90_000, waits=1_000)]
    assert await wait() == 50, "a mean of one second, and two are the limit"
    pods.gateways = [page(1, seconds=20, waits=20), page(1, seconds=3, waits=1)]
    assert await wait() == 0, "it began anew"


async def test_figures_are_none_once_the_clock_is_set_back(pods: Pods, reader: Reader) -> None:
    now = 2e9
    clock: Callable[[], float] = lambda: now  # noqa: E731
    watcher = Watcher("a/b", TARGET, reader, History(), clock=clock)
    pods.gateways = [page(1)]
    await watcher.look()
    assert watcher.metrics()["demand"] == 1
    now = 1e9
    with pytest.raises(NoFigures):
        watcher.metrics()
    await watcher.look()
    assert watcher.metrics()["demand"] == 1


async def test_a_name_that_is_none_is_said_so(reader: Reader) -> None:
    with pytest.raises(NoFigures, match="cannot be resolved"):
        await reader.read(Target("engine", "a..b:1", 8))
