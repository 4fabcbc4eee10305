"""A backend of several servers, over HTTP: they come and go, are drained and ejected, and no request is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RedisServer
from tests.dns_server import DnsServer, dns_server
from tests.fakes import FakeUpstream, answer_events, completion, reply, stream
from tests.serving import KEY, Gateway, a_policy, chat, key, serving

pytestmark = pytest.mark.anyio

OPERATOR_KEY = "tg-operator-1"
NAME = "_http._tcp.pool.test"
ADMIN = {"authorization": f"Bearer {OPERATOR_KEY}"}
KEYS = [
    key(KEY, "acme-1", tenant="acme"),
    key(OPERATOR_KEY, "ops", tenant="ops", scopes=["inference", "admin"]),
]


def of_replicas(*servers: FakeUpstream, backend: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    urls = [server.base_url for server in servers]
    one = {"kind": "openai", "replicas": urls, **(backend or {})}
    models = {"m": {"targets": [{"backend": "pool", "model": "x"}], "retry": {"attempts": 1}}}
    return a_policy(
        "", **{"backends": {"pool": one}, "models": models, "keys": KEYS, "admin": {"enabled": True}, **more}
    )


def name_of(server: FakeUpstream) -> str:
    return f"pool@127.0.0.1:{server.port}"


def srv(*found: FakeUpstream) -> dict[str, list[str]]:
    return {"SRV": [f"0 1 {server.port} 127.0.0.1." for server in found]}


def by_dns(dns: DnsServer) -> dict[str, Any]:
    how = {"srv": NAME, "resolver": dns.address, "every": "20ms"}
    return of_replicas(backend={"base_url": "http://pool/v1", "replicas": how})


async def replicas(gateway: Gateway, *, every: bool = False) -> list[dict[str, Any]]:
    """As the admin API tells them; ``every``: all backends."""
    rows = (await gateway.http.get("/admin/api/backends", headers=ADMIN)).json()["backends"]
    return [row for row in rows if every or (row.get("replica_of") and row["enabled"])]


async def until_replicas(gateway: Gateway, *wanted: FakeUpstream) -> None:
    names = {name_of(server) for server in wanted}
    async with asyncio.timeout(300):
        while {row["name"] for row in await replicas(gateway)} != names:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@asynccontextmanager
async def servers(count: int) -> AsyncIterator[list[FakeUpstream]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(FakeUpstream()) for _ in range(count)]


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.replicas.replicas.EVERY", 0.02)
    monkeypatch.setattr("gateway.replicas.discovery.FIRST", 300.0)


async def ask(gateway: Gateway, **more: Any) -> int:
    return (await gateway.http.post("/v1/chat/completions", json=chat("m", **more))).status_code


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(300):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_requests_are_spread_over_all_and_one_that_fails_is_passed_over(tmp_path: Path) -> None:
    async with servers(3) as found, serving(tmp_path / "p", of_replicas(*found)) as gateway:
        assert [await ask(gateway) for _ in range(60)] == [200] * 60
        assert all(server.requests for server in found)
        found[0].scripts = [reply({"error": {"message": "no"}}, status=500)]
        assert [await ask(gateway) for _ in range(30)] == [200] * 30
        figures = await gateway.metrics()
        failed = f'tollgate_attempts_total{{backend="{name_of(found[0])}",outcome="upstream_error"}}'
        assert figures[failed] >= 5
        assert figures[f'tollgate_breaker_open{{backend="{name_of(found[0])}"}}'] == 1, "its own breaker"
        assert figures.get(f'tollgate_breaker_open{{backend="{name_of(found[1])}"}}', 0) == 0
        assert [one["id"] for one in (await gateway.http.get("/v1/models")).json()["data"]] == ["m"]


async def test_a_retry_goes_to_another_replica(tmp_path: Path) -> None:
    """And not to the one that failed, after a wait."""
    async with servers(2) as (bad, good):
        bad.scripts = [reply({"error": {"message": "no"}}, status=500)] * 9
        models = {
            "m": {"targets": [{"backend": "pool", "model": "x"}], "retry": {"attempts": 5, "backoff": "5m"}}
        }
        async with serving(tmp_path, of_replicas(bad, good, models=models)) as gateway, asyncio.timeout(270):
            while not bad.requests:
                assert await ask(gateway) == 200
            assert len(bad.requests) == 1


async def test_no_request_is_lost_while_replicas_come_and_go(tmp_path: Path) -> None:
    async with servers(4) as found, dns_server() as dns:
        dns.records[NAME] = srv(*found[:1])
        async with serving(tmp_path / "p", by_dns(dns)) as gateway:
            answers: list[int] = []
            done = asyncio.Event()

            async def caller(number: int) -> None:
                while not done.is_set():
                    answers.append(await ask(gateway, stream=bool(number % 2)))

            async with asyncio.TaskGroup() as group:
                for number in range(6):
                    group.create_task(caller(number))
                for here in ([0, 1], [1, 2, 3], [3], [0, 1, 2, 3], [2]):
                    dns.records[NAME] = srv(*(found[one] for one in here))
                    await until_replicas(gateway, *(found[one] for one in here))
                    before = len(answers)
                    await until(lambda before=before: len(answers) > before + 12)
                done.set()
            assert set(answers) == {200}
            assert all(server.requests for server in found)


async def test_one_that_comes_gets_no_request_before_it_answers(tmp_path: Path) -> None:
    """And one that has no such path does at once."""
    async with servers(3) as (old, loading, other), dns_server() as dns:
        dns.records[NAME] = srv(old)
        async with serving(tmp_path / "p", by_dns(dns)) as gateway:
            assert await ask(gateway) == 200
            loading.health = reply({"error": {"message": "the model is being loaded"}}, status=503)
            other.health = reply({"error": {"message": "no such path"}}, status=404)
            dns.records[NAME] = srv(old, loading, other)
            await until_replicas(gateway, old, other)
            await until(lambda: loading.probes)
            assert {await ask(gateway) for _ in range(20)} == {200} and not loading.requests
            loading.health = reply({"object": "list", "data": []})
            await until_replicas(gateway, old, loading, other)
            assert other.probes[0].path == "/v1/models"


@pytest.mark.parametrize("empty", [{}, {NAME: {}}], ids=["no-name", "no-records"])
async def test_requests_wait_for_the_first_replica(
    tmp_path: Path, empty: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.backends.cold_start.PAUSE", 0.02)
    policy_of_none = {"base_url": "http://nowhere.invalid/v1", "cold_start": "280s"}
    async with servers(1) as (server,), dns_server() as dns:
        server.scripts = [stream(*answer_events("a", "b")), reply(completion("whole"))]
        policy = by_dns(dns)
        policy["backends"]["pool"] |= policy_of_none
        dns.records |= empty
        async with serving(tmp_path / "p", policy) as gateway:
            assert (await gateway.http.get("/readyz")).status_code == 200
            body = chat("m", stream=True)
            async with gateway.http.stream("POST", "/v1/chat/completions", json=body) as answer:
                lines = answer.aiter_lines()
                told = await anext(line async for line in lines if line.startswith(": starting"))
                whole = asyncio.create_task(ask(gateway))
                in_flight = 'tollgate_backend_requests_in_flight{backend="pool"}'
                while (await gateway.metrics()).get(in_flight) != 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                server.health = reply({"error": {"message": "loading"}}, status=503)
                dns.records[NAME] = srv(server)
                await until(lambda: server.probes)
                assert not server.requests and not whole.done()
                server.health = reply({"object": "list", "data": []})
                rest = [line async for line in lines]
            assert told == ": starting position=1" and "data: [DONE]" in rest
            assert await whole == 200 and len(server.requests) == 2
            assert await ask(gateway) == 200
            await until_replicas(gateway, server)
            # The last one goes, and another comes.
            dns.records.pop(NAME)
            dns.records |= empty
            await until_replicas(gateway)
            waits = asyncio.create_task(ask(gateway))
            while (await gateway.metrics()).get(in_flight) != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            dns.records[NAME] = srv(server)
            assert await waits == 200


async def test_a_request_in_flight_ends_on_a_replica_that_is_gone(tmp_path: Path) -> None:
    async with servers(2) as (old, new), dns_server() as dns:
        go_on = asyncio.Event()
        begin, *rest = answer_events("a", "b")
        old.scripts = [stream(begin, go_on, *rest)]
        dns.records[NAME] = srv(old)
        async with serving(tmp_path / "p", by_dns(dns)) as gateway:
            slow = asyncio.create_task(gateway.http.post("/v1/chat/completions", json=chat("m", stream=True)))
            await old.arrived()
            dns.records[NAME] = srv(new)
            await until_replicas(gateway, new)
            assert await ask(gateway) == 200
            assert (len(old.requests), len(new.requests)) == (1, 1)
            go_on.set()
            answer = await slow
            assert answer.text.endswith("data: [DONE]\n\n") and '"b"' in answer.text
            # Nobody answers any more: those that are known stay.
            dns.refuses, asked = True, dns.asked
            await until(lambda: dns.asked > asked + 2)
            assert await ask(gateway) == 200


async def test_the_next_gateway_begins_with_what_was_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.replicas.discovery.FIRST", 0.05)
    async with servers(1) as (server,), dns_server() as dns:
        dns.records[NAME] = srv(server)
        async with serving(tmp_path / "p", by_dns(dns)) as gateway:
            await until_replicas(gateway, server)
        dns.refuses = True
        async with serving(tmp_path / "p", by_dns(dns)) as gateway:
            assert await ask(gateway) == 200
        (tmp_path / "state" / "replicas.json").unlink()
        async with serving(tmp_path / "p", by_dns(dns)) as gateway:
            answer = await gateway.http.post("/v1/chat/completions", json=chat("m"))
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unavailable")
            (pool,) = await replicas(gateway, every=True)
            assert pool["disabled"] == "none of its replicas is known yet"
            dns.refuses = False
            await until_replicas(gateway, server)
            assert await ask(gateway) == 200


async def test_a_replica_is_drained_and_used_again(tmp_path: Path, quick_reload: None) -> None:
    async with servers(2) as (first, second), serving(tmp_path / "p", of_replicas(first, second)) as gateway:
        told = await gateway.http.post(f"/admin/api/backends/{name_of(first)}/drain", headers=ADMIN)
        assert told.json()["changed"], told.text
        await until_replicas(gateway, second)
        assert [await ask(gateway) for _ in range(10)] == [200] * 10
        assert (len(first.requests), len(second.requests)) == (0, 10)
        rows = {row["name"]: row for row in await replicas(gateway, every=True)}
        assert rows[name_of(first)]["drained"] and rows[name_of(first)]["replica_of"] == "pool"
        assert rows[name_of(second)]["share"] == 1.0 and rows["pool"]["enabled"]
        unknown = await gateway.http.post("/admin/api/backends/other@127.0.0.1:1/drain", headers=ADMIN)
        assert unknown.status_code == 404
        mistyped = await gateway.http.post("/admin/api/backends/pool@127.0.0.1:1/drain", headers=ADMIN)
        assert mistyped.status_code == 409 and "no replica is named 'pool@127.0.0.1:1'" in mistyped.text
        gone = await gateway.http.post("/admin/api/backends/pool@127.0.0.1:1/undrain", headers=ADMIN)
        assert gone.status_code == 200, "it may have been drained while the policy had it"
        await gateway.http.post(f"/admin/api/backends/{name_of(first)}/undrain", headers=ADMIN)
        await until_replicas(gateway, first, second)
        await gateway.http.post("/admin/api/backends/pool/drain", headers=ADMIN)
        await until_replicas(gateway)
        refused = await gateway.http.post("/v1/chat/completions", json=chat("m"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_unavailable")


async def test_gateways_of_one_store_obey_a_drain_and_after_a_restart(
    tmp_path: Path, own_redis: RedisServer
) -> None:
    async with servers(2) as (first, second):
        policy = of_replicas(first, second, store=own_redis.url)
        async with serving(tmp_path / "a" / "p", policy) as one:
            async with serving(tmp_path / "b" / "p", policy) as other:
                told = await one.http.post(f"/admin/api/backends/{name_of(first)}/drain", headers=ADMIN)
                assert told.json() == {
                    "backend": name_of(first),
                    "drained": True,
                    "changed": True,
                    "in_force": True,
                }
                await until_replicas(one, second)
                await until_replicas(other, second)
            async with serving(tmp_path / "c" / "p", policy) as another:
                await until_replicas(another, second)
                await another.http.post("/admin/api/backends/pool/drain", headers=ADMIN)
                await until_replicas(one)
                await another.http.post("/admin/api/backends/pool/undrain", headers=ADMIN)
                await until_replicas(one, second)
            own_redis.kill()
            assert [await ask(one) for _ in range(5)] == [200] * 5
            refused = await one.http.post(f"/admin/api/backends/{name_of(first)}/undrain", headers=ADMIN)
            assert refused.status_code == 409
            await until_replicas(one, second)


async def test_a_replica_that_fails_again_and_again_is_ejected(tmp_path: Path) -> None:
    outliers = {"consecutive_5xx": 3, "base_ejection_time": "300s"}
    async with servers(3) as found:
        urls = [{"url": server.base_url} for server in found]
        backend = {
            "replicas": {"servers": urls, "outliers": outliers},
            "breaker": {"failures": 1000},
        }
        async with serving(tmp_path / "p", of_replicas(backend=backend)) as gateway:
            found[0].scripts = [reply({"error": {"message": "no"}}, status=500)]
            while len(found[0].requests) < 3:
                assert await ask(gateway) == 200
            assert [await ask(gateway) for _ in range(20)] == [200] * 20
            assert len(found[0].requests) == 3
            rows = {row["name"]: row for row in await replicas(gateway)}
            assert rows[name_of(found[0])]["share"] == 0.0


async def test_an_edit_of_the_replicas_keeps_what_is_cached(tmp_path: Path, quick_reload: None) -> None:
    async with servers(2) as (first, second):
        caches = {"exact": {"ttl": "1h"}}
        async with serving(tmp_path / "p", of_replicas(first, caches=caches)) as gateway:
            assert await ask(gateway, temperature=0) == 200
            gateway.write(of_replicas(second, caches=caches))
            await gateway.generation(2)
            answer = await gateway.http.post("/v1/chat/completions", json=chat("m", temperature=0))
            assert answer.headers["x-tollgate-cache"] == "exact" and not second.requests
            assert await ask(gateway, temperature=1) == 200
            assert len(second.requests) == 1
