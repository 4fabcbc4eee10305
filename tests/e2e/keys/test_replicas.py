"""What the keys of ``backends.<name>.replicas`` do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.policy.schema import Replicas
from gateway.replicas.rotation import Group
from tests.dns_server import dns_server
from tests.e2e.keys.harness import OTHER, UP, Look, Row, Site, a_site, shows, text
from tests.fakes import FakeUpstream, completion, reply
from tests.kubernetes_api import a_pod, a_pool, endpoint, kubernetes_api
from tests.serving import KEY, key

pytestmark = pytest.mark.anyio

KINDS = ("openai", "engine")
FINE = reply(completion("from up"))
REPLICAS = "backends.<name>.replicas"


def of(kind: str, url: str) -> str:
    return url if kind == "openai" else url.removesuffix("/v1")


def pool(kind: str, replicas: Any, **more: Any) -> dict[str, Any]:
    """The backend ``up``, as this kind and with these replicas."""
    base_url = of(kind, UP)
    backend = {"kind": kind, "base_url": base_url, **({} if replicas is None else {"replicas": replicas})}
    return {"backends": {"up": backend}, "models": {"up": {"select": "weighted", **more}}}


def servers(kind: str, *each: dict[str, Any]) -> dict[str, Any]:
    urls = (of(kind, UP), of(kind, OTHER))
    return {"servers": [{"url": url, **one} for url, one in zip(urls, each, strict=True)]}


def texts(count: int) -> Look:
    async def look(site: Site) -> list[str]:
        return sorted({await text(model="up")(site) for _ in range(count)})

    return look


def rows(kind: str) -> list[Row]:
    elsewhere = ("from the other", "from up")
    only = {"servers": [{"url": of(kind, OTHER)}]}
    return [
        Row(
            f"{REPLICAS} ({kind})",
            pool(kind, [of(kind, OTHER)]),
            text(model="up"),
            *elsewhere,
            pool(kind, None),
            up=(FINE,),
        ),
        Row(
            f"{REPLICAS}.servers ({kind})",
            pool(kind, only),
            text(model="up"),
            *elsewhere,
            pool(kind, [of(kind, UP)]),
            up=(FINE,),
        ),
        Row(
            f"{REPLICAS}.servers[].url ({kind})",
            pool(kind, only),
            text(model="up"),
            *elsewhere,
            pool(kind, {"servers": [{"url": of(kind, UP)}]}),
            up=(FINE,),
        ),
        Row(
            f"{REPLICAS}.servers[].weight ({kind})",
            pool(kind, servers(kind, {"weight": 0.000001}, {"weight": 1000000.0})),
            texts(30),
            ["from the other"],
            ["from the other", "from up"],
            pool(kind, servers(kind, {}, {})),
            up=(FINE,),
        ),
        Row(
            f"{REPLICAS}.servers[].zone ({kind})",
            pool(kind, servers(kind, {"zone": "far"}, {"zone": "here"})),
            texts(30),
            ["from the other"],
            ["from the other", "from up"],
            pool(kind, servers(kind, {}, {})),
            up=(FINE,),
            settings={"zone": "here"},
        ),
    ]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.replicas.discovery.FIRST", 300.0)


ROWS = [row for kind in KINDS for row in rows(kind)]


@pytest.mark.parametrize("row", ROWS, ids=str)
async def test_what_it_does(row: Row, tmp_path: Path) -> None:
    await row.run(tmp_path)


@shows(*(f"{REPLICAS}.{name} ({kind})" for name in ("dns", "resolver") for kind in KINDS))
@pytest.mark.parametrize("kind", KINDS)
async def test_addresses_of_a_name(kind: str, tmp_path: Path) -> None:
    async with dns_server() as dns, FakeUpstream(FINE) as server:
        dns.records["pool.test"] = {"A": ["127.0.0.1"]}
        policy = pool(kind, {"dns": "pool.test", "resolver": dns.address})
        policy["backends"]["up"]["base_url"] = f"http://pool.test:{server.port}{'/v1' * (kind == 'openai')}"
        async with a_site(tmp_path, policy) as site:
            assert await text(model="up")(site) == "from up"
            assert dns.asked


@shows(*(f"{REPLICAS}.{name} ({kind})" for name in ("srv", "every", "slow_start") for kind in KINDS))
@pytest.mark.parametrize("kind", KINDS)
async def test_services_of_a_name_are_asked_for_every_so_often(kind: str, tmp_path: Path) -> None:
    async with dns_server() as dns, FakeUpstream(FINE) as first, FakeUpstream(FINE) as second:
        shares = []
        for number, slow_start in enumerate(("300s", "0s")):
            dns.records["_llm._tcp.test"] = {"SRV": [f"0 1 {first.port} 127.0.0.1."]}
            how = {
                "srv": "_llm._tcp.test",
                "resolver": dns.address,
                "every": "20ms",
                "slow_start": slow_start,
            }
            policy = {
                **pool(kind, how),
                "admin": {"enabled": True},
                "keys": [key(KEY, "one", tenant="acme", scopes=["inference", "admin"])],
            }
            async with a_site(tmp_path / str(number), policy) as site:
                assert await text(model="up")(site) == "from up"
                dns.records["_llm._tcp.test"] = {
                    "SRV": [f"0 1 {one.port} 127.0.0.1." for one in (first, second)]
                }
                async with asyncio.timeout(300):
                    while (share := await share_of(site, second)) is None:  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                shares.append(share)
        assert shares[0] < shares[1] == 1.0


@shows(*(f"{REPLICAS}.ready_within ({kind})" for kind in KINDS))
@pytest.mark.parametrize("kind", KINDS)
async def test_one_that_comes_is_asked_whether_it_answers(kind: str, tmp_path: Path) -> None:
    async with dns_server() as dns, FakeUpstream(FINE) as first, FakeUpstream(FINE) as second:
        second.health = reply({"error": {"message": "loading"}}, status=503)
        for within in ("280s", "0s"):
            dns.records["_llm._tcp.test"] = {"SRV": [f"0 1 {first.port} 127.0.0.1."]}
            how = {"srv": "_llm._tcp.test", "resolver": dns.address, "every": "20ms", "ready_within": within}
            policy = {
                **pool(kind, how),
                "admin": {"enabled": True},
                "keys": [key(KEY, "one", tenant="acme", scopes=["inference", "admin"])],
            }
            async with a_site(tmp_path / within, policy) as site:
                assert await text(model="up")(site) == "from up"
                dns.records["_llm._tcp.test"] = {
                    "SRV": [f"0 1 {one.port} 127.0.0.1." for one in (first, second)]
                }
                async with asyncio.timeout(300):
                    if within == "280s":
                        while not second.probes:  # noqa: ASYNC110
                            await asyncio.sleep(0.02)
                        assert second.probes[0].path == {"openai": "/v1/models", "engine": "/health"}[kind]
                        assert await share_of(site, second) is None
                    else:
                        while await share_of(site, second) is None:  # noqa: ASYNC110
                            await asyncio.sleep(0.02)


@shows(
    *(
        f"{REPLICAS}.kubernetes{name} ({kind})"
        for name in ("", ".service", ".namespace", ".port")
        for kind in KINDS
    )
)
@pytest.mark.parametrize("kind", KINDS)
async def test_endpoints_of_a_service(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with kubernetes_api() as api, FakeUpstream(FINE) as server:
        api.put("vllm-1", endpoint("127.0.0.1"), port=server.port)
        file = str(api.kubeconfig(tmp_path / "config"))
        monkeypatch.setenv("KUBECONFIG", file)
        service = {"service": "vllm", "namespace": "models", "port": "http"}
        async with a_site(tmp_path, pool(kind, {"kubernetes": service})) as site:
            async with asyncio.timeout(300):
                while await text(model="up")(site) != "from up":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        assert "/namespaces/models/" in api.asked[0]["path"]
        assert api.asked[0]["labelSelector"].endswith("=vllm")
        async with asyncio.timeout(300):
            while api.watchers:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@shows(*(f"{REPLICAS}.pool{name} ({kind})" for name in ("", ".name", ".namespace") for kind in KINDS))
@pytest.mark.parametrize("kind", KINDS)
async def test_pods_of_an_inference_pool(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with kubernetes_api() as api, FakeUpstream(FINE) as server:
        api.put_one("inferencepools", "qwen", a_pool(server.port, app="qwen"))
        api.put_one("inferencepools", "other", a_pool(1, app="other"))
        api.put_one("pods", "a", a_pod("127.0.0.1", app="qwen"))
        monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "config")))
        async with a_site(tmp_path, pool(kind, {"pool": {"name": "qwen", "namespace": "models"}})) as site:
            async with asyncio.timeout(300):
                while await text(model="up")(site) != "from up":  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        assert all("/namespaces/models/" in one["path"] for one in api.asked)
        async with asyncio.timeout(300):
            while api.watchers:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def share_of(site: Site, server: FakeUpstream) -> float | None:
    found = (await site.gateway.http.get("/admin/api/backends")).json()["backends"]
    return next((row["share"] for row in found if row["name"] == f"up@127.0.0.1:{server.port}"), None)


class Judged:
    """Six replicas under some rules, on a clock that is given."""

    def __init__(self, **rules: Any) -> None:
        self.now = 0.0
        usual = {"success_rate_minimum_hosts": 1000, "consecutive_5xx": 3, **rules}
        replicas = Replicas.model_validate({"dns": "x", "slow_start": "0s", "outliers": usual})
        self.group = Group("pool", replicas, lambda: self.now)
        self.group.update([f"r{number}" for number in range(6)])

    def fails(self, *numbers: int, times: int = 3) -> None:
        for number in numbers:
            for _ in range(times):
                self.group.ended(f"r{number}", well=False)

    def round(self, requests: int, bad: int) -> None:
        """Each replica is asked so often, and of the first one's requests so many fail, one now and then."""
        for number in range(6):
            for asked in range(requests):
                self.group.ended(f"r{number}", well=bool(number) or asked % requests >= bad or asked % 2 == 0)

    @property
    def ejected(self) -> int:
        return sum(self.group.share(one) == 0.0 for one in self.group.standings.values())


@shows(
    *(
        f"{REPLICAS}.outliers{name} ({kind})"
        for kind in KINDS
        for name in (
            *("", ".consecutive_5xx", ".base_ejection_time", ".max_ejection_time", ".max_ejection_percent"),
            *(".interval", ".success_rate_minimum_hosts", ".success_rate_request_volume"),
            ".success_rate_stdev_factor",
        )
    )
)
def test_outliers_are_ejected_by_these_rules() -> None:
    few, many = Judged(consecutive_5xx=3), Judged(consecutive_5xx=4)
    few.fails(0)
    many.fails(0)
    assert (few.ejected, many.ejected) == (1, 0)
    short, long = Judged(base_ejection_time="10s"), Judged(base_ejection_time="60s")
    for one in (short, long):
        one.fails(0)
        one.now = 20.0
    assert (short.ejected, long.ejected) == (0, 1)
    capped = Judged(base_ejection_time="60s", max_ejection_time="15s")
    capped.fails(0)
    capped.now = 20.0
    assert capped.ejected == 0
    third, all_of_them = Judged(max_ejection_percent=34.0), Judged(max_ejection_percent=100.0)
    for one in (third, all_of_them):
        one.fails(*range(6))
    assert (third.ejected, all_of_them.ejected) == (2, 5), "the last one never is"
    by_rate = {"consecutive_5xx": 1000, "success_rate_minimum_hosts": 5, "success_rate_request_volume": 20}
    rules: list[tuple[dict[str, Any], int]] = [
        ({}, 1),
        ({"interval": "60s"}, 0),
        ({"success_rate_minimum_hosts": 7}, 0),
        ({"success_rate_request_volume": 100}, 0),
        ({"success_rate_stdev_factor": 9.0}, 0),
    ]
    for more, ejected in rules:
        judged = Judged(**{**by_rate, **more})
        judged.round(40, 20)
        judged.now = 11.0
        judged.round(1, 0)
        assert judged.ejected == ejected, more


FULL = "vllm:num_requests_running 9\nvllm:num_requests_waiting 9\nvllm:kv_cache_usage_perc 1\n"


@shows("backends.<name>.telemetry (openai)")
async def test_who_says_that_it_is_full_is_asked_last(tmp_path: Path) -> None:
    targets = [
        {"backend": "other", "model": "o", "weight": 1000000.0},
        {"backend": "up", "model": "u", "weight": 0.000001},
    ]
    pair = {"models": {"pair": {"targets": targets}}}
    look = text(model="pair")
    async with a_site(tmp_path / "without", pair, up=(FINE,)) as site:
        assert await look(site) == "from the other"
    heard = {"backends": {"other": {"telemetry": "vllm"}}, **pair}
    async with a_site(tmp_path / "given", heard, up=(FINE,)) as site, asyncio.timeout(300):
        seen, looked = "", 0
        while seen != "from up":
            # A page on which nothing changes is soon that of a server that does not look any more.
            looked += 1
            site.other.health = reply(f"{FULL}process_cpu_seconds_total {looked}\n", kind="text/plain")
            await asyncio.sleep(0.02)
            seen = await look(site)
        assert "/metrics" in {probe.path for probe in site.other.probes}
