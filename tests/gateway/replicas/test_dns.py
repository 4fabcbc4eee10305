"""Replicas by the DNS, asked of a server that runs here."""

from __future__ import annotations

import pytest

from gateway.policy.members import Found
from gateway.policy.schema import Replicas
from gateway.replicas.dns import DnsFailed, DnsSource
from tests.dns_server import DnsServer, dns_server

pytestmark = pytest.mark.anyio


def source(server: DnsServer, **how: str) -> DnsSource:
    replicas = Replicas.model_validate({**how, "resolver": server.address})
    return DnsSource("pool", "http://pool:8000/v1", replicas)


async def test_addresses_of_both_kinds_at_the_port_and_path_of_the_base_url() -> None:
    async with dns_server() as server:
        server.records["pool.test"] = {"A": ["10.0.0.2", "10.0.0.1"], "AAAA": ["fd00::1"]}
        found = await source(server, dns="pool.test").look()
        urls = ["http://10.0.0.1:8000/v1", "http://10.0.0.2:8000/v1", "http://[fd00::1]:8000/v1"]
        assert found == [Found(url) for url in urls]


async def test_services_of_the_best_priority_have_ports_and_weights_of_their_own() -> None:
    async with dns_server() as server:
        records = ["0 3 8001 a.test.", "0 0 8002 b.test.", "1 1 8003 spare.test."]
        server.records["_http._tcp.pool.test"] = {"SRV": records}
        found = await source(server, srv="_http._tcp.pool.test").look()
        assert found == [Found("http://a.test:8001/v1", 3.0), Found("http://b.test:8002/v1", 1.0)]


async def test_a_name_that_is_not_there_or_has_nothing_fails_and_says_which() -> None:
    async with dns_server() as server:
        server.records["empty.test"] = {}
        for name in ("empty.test", "gone.test"):
            with pytest.raises(DnsFailed, match=name):
                await source(server, dns=name).look()


async def test_the_machine_itself_knows_names() -> None:
    replicas = Replicas.model_validate({"dns": "localhost"})
    found = await DnsSource("pool", "http://pool:8000", replicas).look()
    assert Found("http://127.0.0.1:8000") in found


async def test_what_can_be_no_name_fails_as_others_do() -> None:
    for name in ("a..b", f"{'x' * 64}.test"):
        replicas = Replicas.model_validate({"dns": name})
        with pytest.raises(DnsFailed, match=name):
            await DnsSource("pool", "http://pool:8000", replicas).look()
