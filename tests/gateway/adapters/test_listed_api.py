"""Adapters that servers list of themselves: a gateway on a socket before servers that say what they were asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.adapter_server import adapter_server
from tests.adapters import create
from tests.lora_server import BASE, LoraServer, lora_servers
from tests.serving import NARROW_KEY, OTHER_KEY, Gateway, a_policy, key, serving

pytestmark = pytest.mark.anyio

BOSS = {"authorization": "Bearer tg-boss"}
OTHER = {"authorization": f"Bearer {OTHER_KEY}"}
QUESTION = {"messages": [{"role": "user", "content": "Who are you?"}]}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.adapters.listing.EVERY", 0.05)


def policy(*servers: LoraServer, listed: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A model ``chat`` of a backend whose replicas ``servers`` are."""
    found = a_policy("http://127.0.0.1:1/v1")
    secret = {} if servers[0].api_key is None else {"api_key": servers[0].api_key}
    urls = [f"{server.url}/v1" for server in servers]
    found["backends"]["vllm"] = {"kind": "openai", "replicas": urls, "telemetry": servers[0].kind, **secret}
    found["models"]["chat"] = {"targets": [{"backend": "vllm", "model": BASE}], "aliases": ["c"]}
    found["prices"] = {BASE: {"input": 1.0, "output": 2.0}}
    found["admin"] = {"enabled": True}
    found["keys"].append(key("tg-boss", "boss", scopes=["admin"]))
    found["adapters"] = {"listed": {"vllm": listed or {}}}
    return found | more


@asynccontextmanager
async def gateway(folder: Path, *servers: LoraServer, **more: Any) -> AsyncIterator[Gateway]:
    async with lora_servers(*servers), serving(folder / "policies", policy(*servers, **more)) as found:
        yield found


async def ask(http: httpx.AsyncClient, model: str, **more: Any) -> httpx.Response:
    return await http.post("/v1/chat/completions", json={"model": model, **QUESTION}, **more)


def said(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


async def models(found: Gateway, **more: Any) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in (await found.http.get("/v1/models", **more)).json()["data"]}


async def seen(found: Gateway) -> dict[str, Any]:
    return dict((await found.http.get("/admin/api/adapters", headers=BOSS)).json())


async def until(found: Gateway, is_so: Callable[[dict[str, dict[str, Any]]], bool]) -> None:
    async with asyncio.timeout(300):
        while not is_so(await models(found)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_what_a_server_lists_is_a_model_of_those_who_may_ask_its_base(tmp_path: Path) -> None:
    server = LoraServer(["sql", "org/style-v2"], api_key="sk-vllm")
    async with gateway(tmp_path, server) as found:
        answer = await ask(found.http, "chat:sql")
        assert said(answer) == "sql" and server.asked == ["sql"]
        assert answer.json()["model"] == "chat:sql" == answer.headers["x-tollgate-model"]
        assert said(await ask(found.http, "c:org/style-v2")) == "org/style-v2"
        assert said(await ask(found.http, "chat")) == "the base model"
        listed = await models(found)
        assert listed["chat:sql"]["parent"] == "chat" and "chat:org/style-v2" in listed
        assert (await found.http.get("/v1/models/chat:org/style-v2")).status_code == 200
        narrow = {"authorization": f"Bearer {NARROW_KEY}"}
        assert (await ask(found.http, "chat:sql", headers=narrow)).status_code == 404
        assert "chat:sql" not in await models(found, headers=narrow)
        unknown = await ask(found.http, "chat:nothing")
        assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "model_not_found"
        assert unknown.json()["error"]["message"].endswith("list now: `chat:org/style-v2`, `chat:sql`.")
        hidden = (await ask(found.http, "chat:nothing", headers=narrow)).json()["error"]["message"]
        assert "sql" not in hidden


async def test_without_discovery_nobody_is_asked(tmp_path: Path) -> None:
    server = LoraServer(["sql"])
    async with lora_servers(server):
        given = policy(server)
        del given["adapters"]
        async with serving(tmp_path / "policies", given) as found:
            assert (await ask(found.http, "chat:sql")).status_code == 404
            assert server.listed == 0
            found.write(policy(server))
            await found.generation(2)
            assert said(await ask(found.http, "chat:sql")) == "sql"
            found.write(given)
            await found.generation(3)
            assert (await ask(found.http, "chat:sql")).status_code == 404


async def test_requests_go_where_it_is_listed_and_a_name_lasts_as_long_as_anybody_lists_it(
    tmp_path: Path,
) -> None:
    one, two = LoraServer(["sql", "both"]), LoraServer(["law", "both"])
    async with gateway(tmp_path, one, two) as found:
        for _ in range(4):
            assert said(await ask(found.http, "chat:sql")) == "sql"
            assert said(await ask(found.http, "chat:law")) == "law"
            assert said(await ask(found.http, "chat:both")) == "both"
        assert "law" not in one.asked and "sql" not in two.asked
        one.adapters.remove("sql")
        two.adapters.append("new")
        await until(found, lambda there: "chat:sql" not in there and "chat:new" in there)
        gone = await ask(found.http, "chat:sql")
        assert gone.status_code == 404 and "`chat:both`, `chat:law`, `chat:new`" in gone.text
        assert said(await ask(found.http, "chat:new")) == "new"
        one.adapters.remove("both")
        await until(found, lambda there: "chat:both" in there)
        for _ in range(4):
            assert said(await ask(found.http, "chat:both")) == "both"


async def test_it_goes_to_a_replica_that_runs_it(tmp_path: Path) -> None:
    servers = [LoraServer(["a", "b"], running=["b"] if number == 2 else ["a"]) for number in range(3)]
    async with gateway(tmp_path, *servers) as found:
        async with asyncio.timeout(300):
            while [len(one["ready_on"]) for one in (await seen(found))["listed"]] != [2, 1]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        for _ in range(6):
            assert said(await ask(found.http, "chat:b")) == "b"
        assert [len(server.asked) for server in servers] == [0, 0, 6]


async def test_a_server_that_lists_what_it_has_not_is_asked_last(tmp_path: Path) -> None:
    liar, honest = LoraServer(["sql", "none"], missing={"sql", "none"}), LoraServer(["sql"])
    async with gateway(tmp_path, liar, honest) as found:
        for _ in range(8):
            assert said(await ask(found.http, "chat:sql")) == "sql"
        assert liar.asked.count("sql") <= 1
        answer = await ask(found.http, "chat:none")
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "adapter_not_there"
        body = {"model": "chat:sql", "stream": True, **QUESTION}
        assert "sql" in (await found.http.post("/v1/chat/completions", json=body)).text
        assert said(await ask(found.http, "chat")) == "the base model"


async def test_sglang_is_asked_by_base_and_name(tmp_path: Path) -> None:
    server = LoraServer(["sql"], kind="sglang")
    async with gateway(tmp_path, server) as found:
        assert said(await ask(found.http, "chat:sql")) == "sql"
        assert server.asked == [f"{BASE}:sql"]


async def test_who_may_ask_them(tmp_path: Path) -> None:
    async with gateway(tmp_path, LoraServer(["sql"]), listed={"tenants": ["oth*"]}) as found:
        assert (await ask(found.http, "chat:sql")).status_code == 404
        assert "chat:sql" not in await models(found)
        assert said(await ask(found.http, "chat:sql", headers=OTHER)) == "sql"


async def test_what_is_counted_has_its_name_and_its_bases_price(tmp_path: Path) -> None:
    async with gateway(tmp_path, LoraServer(["sql", "law"])) as found:
        for model in ("chat", "chat:sql"):
            said(await ask(found.http, model))
        async with asyncio.timeout(300):
            while True:
                answer = await found.http.get("/admin/api/usage?by=model", headers=BOSS)
                rows = {row["model"]: row for row in answer.json()["rows"]}
                if {"chat", "chat:sql"} <= rows.keys():
                    break
                await asyncio.sleep(0.05)
        assert rows["chat"]["usd"] == rows["chat:sql"]["usd"] > 0


async def test_a_price_of_its_own_holds_at_each_replica(tmp_path: Path) -> None:
    prices = {BASE: {"input": 1.0, "output": 2.0}, "vllm/sql": {"input": 100.0, "output": 200.0}}
    async with gateway(tmp_path, LoraServer(["sql"]), prices=prices) as found:
        for model in ("chat", "chat:sql"):
            said(await ask(found.http, model))
        async with asyncio.timeout(300):
            while True:
                answer = await found.http.get("/admin/api/usage?by=model", headers=BOSS)
                rows = {row["model"]: row["usd"] for row in answer.json()["rows"]}
                if {"chat", "chat:sql"} <= rows.keys():
                    break
                await asyncio.sleep(0.05)
        assert rows["chat:sql"] == pytest.approx(100 * rows["chat"])


async def test_a_model_of_the_policy_keeps_its_name_before_who_may_not_ask_it(tmp_path: Path) -> None:
    server = LoraServer(["sql", "law", "tax"])
    async with lora_servers(server):
        given = policy(server)
        given["models"]["chat:sql"] = given["models"]["fake"]
        given["keys"].append(key("tg-base", "base-alone", tenant="acme", models=["chat"]))
        given["keys"].append(key("tg-law", "law-alone", tenant="acme", models=["chat:law", "c:tax"]))
        async with serving(tmp_path / "policies", given) as found:
            base, law = ({"authorization": f"Bearer tg-{name}"} for name in ("base", "law"))
            for asked in ("chat:sql", "c:sql"):
                assert (await ask(found.http, asked, headers=base)).status_code == 404
            assert said(await ask(found.http, "chat:law", headers=base)) == "law"
            assert said(await ask(found.http, "c:law", headers=law)) == "law"
            assert (await ask(found.http, "chat", headers=law)).status_code == 404
            assert [*await models(found, headers=law)] == ["chat:law"]
            assert said(await ask(found.http, "c:tax", headers=law)) == "tax"
            assert server.asked == ["law", "law", "tax"]


async def test_an_operator_hears_which_key_is_refused(tmp_path: Path) -> None:
    server = LoraServer(["sql"], api_key="sk-vllm")
    async with lora_servers(server):
        given = policy(server)
        server.api_key = "sk-another"
        async with serving(tmp_path / "policies", given) as found:
            (told,) = (await seen(found))["servers"]
            assert "its api_key needs the operator's care" in told["problem"] and told["adapters"] == 0


async def test_what_is_explained_is_not_sent(tmp_path: Path) -> None:
    servers = [LoraServer(["law"]), LoraServer(["sql"])]
    async with gateway(
        tmp_path, *servers, guards={"length": {"models": ["ch*"], "max_characters": 1000}}
    ) as found:
        for name, backend in (("sql", servers[1]), ("none", None)):
            asked = {"key": "acme-1", "body": {"model": f"c:{name}", **QUESTION}}
            told = (await found.http.post("/admin/api/explain", headers=BOSS, json=asked)).json()
            if backend is None:
                assert told["outcome"]["status"] == 404 and "`chat:sql`" in told["outcome"]["message"]
            else:
                assert told["outcome"]["status"] is None and told["outcome"]["model"] == "chat:sql"
                assert told["outcome"]["backend"] == f"vllm@{backend.url.removeprefix('http://')}"
                assert told["outcome"]["target"] == "sql"
                assert {"route", "cost"} <= {one["stage"] for one in told["steps"]}
        assert not any(server.asked for server in servers)
        assert not any(one["ready_on"] for one in (await seen(found))["listed"])


async def test_metrics_have_one_label_for_all_of_a_model(tmp_path: Path) -> None:
    async with gateway(tmp_path, LoraServer(["sql", "law"])) as found:
        for model in ("chat:sql", "chat:law"):
            said(await ask(found.http, model))
        async with asyncio.timeout(300):
            while not any('model="adapter-*"' in name for name in await found.metrics()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        metrics = await found.metrics()
        assert not [name for name in metrics if "sql" in name or "law" in name]
        (requests,) = (name for name in metrics if "requests_total{" in name and 'model="chat:*"' in name)
        assert metrics[requests] == 2
        assert [metrics[name] for name in metrics if name.startswith("tollgate_adapters_listed{")] == [2]


async def test_a_tenants_own_hides_one_of_its_name_from_that_tenant_alone(tmp_path: Path) -> None:
    async with adapter_server(own=["support", "sql", "model"]) as server:
        given = a_policy("http://127.0.0.1:1/v1", admin={"enabled": True})
        given["keys"].append(key("tg-boss", "boss", scopes=["admin"]))
        given["backends"]["engine"] = {"kind": "engine", "base_url": server.url}
        given["models"]["base"] = {"targets": [{"backend": "engine", "model": "base"}]}
        given["models"]["base:model"] = given["models"]["fake"]
        given["adapters"] = {"servers": {"engine": {}}, "listed": {"engine": {}}}
        async with serving(tmp_path / "policies", given) as found:
            assert said(await ask(found.http, "base:support")) == "own support"
            made = await create(found.http, "support")
            assert made.json()["hides_listed"] is True
            assert said(await ask(found.http, "base:support")) == made.json()["sha256"]
            assert said(await ask(found.http, "base:support", headers=OTHER)) == "own support"
            assert said(await ask(found.http, "base:model")) == "one two three"
            listed = [one["id"] for one in (await found.http.get("/v1/models")).json()["data"]]
            assert [listed.count(f"base:{name}") for name in ("support", "sql", "model")] == [1, 1, 1]
            shown = {one["model"]: one for one in (await seen(found))["listed"]}
            assert shown["base:support"]["hidden_from"] == ["acme"] and shown["base:model"]["hidden_by_model"]
            assert made.json()["id"] not in str(shown)  # what came by upload is listed there, too
            await found.http.delete(f"/v1/adapters/{made.json()['id']}")
            assert said(await ask(found.http, "base:support")) == "own support"
            assert "hides_listed" not in (await create(found.http, "new")).json()


async def test_one_that_answers_nothing_or_nonsense_has_no_adapters_and_still_serves(tmp_path: Path) -> None:
    server = LoraServer(["sql"], listing=b'{"data": [' + b'"x",' * 2_000_000 + b'"x"]}')
    async with gateway(tmp_path, server) as found:
        assert (await ask(found.http, "chat:sql")).status_code == 404
        assert said(await ask(found.http, "chat")) == "the base model"
        (told,) = (await seen(found))["servers"]
        assert "unreasonable length" in told["problem"]
        server.listing = None
        await until(found, lambda there: "chat:sql" in there)
        server.listing = b"<html>"
        async with asyncio.timeout(300):
            while "problem" not in (await seen(found))["servers"][0]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert said(await ask(found.http, "chat:sql")) == "sql"  # for a while it is believed what it said
