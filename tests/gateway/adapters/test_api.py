"""Adapters from upload to answer: a gateway on a socket before a server that says whose weights it used."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.adapter_server import TOKEN, AdapterServer, adapter_server
from tests.adapters import create, safetensors, shapes
from tests.serving import NARROW_KEY, OTHER_KEY, Gateway, a_policy, serving

pytestmark = pytest.mark.anyio

OTHER = {"authorization": f"Bearer {OTHER_KEY}"}
QUESTION = {"messages": [{"role": "user", "content": "Who are you?"}]}


def policy(*servers: AdapterServer, slots: int | None = None, **more: Any) -> dict[str, Any]:
    """A model ``base`` at ``servers``."""
    found = a_policy("http://127.0.0.1:1/v1")
    names = [f"engine{number}" for number, _ in enumerate(servers)]
    for name, server in zip(names, servers, strict=True):
        found["backends"][name] = {"kind": "engine", "base_url": server.url}
    found["models"]["base"] = {"targets": [{"backend": name, "model": "base"} for name in names]}
    told = {"token": TOKEN} | ({} if slots is None else {"slots": slots})
    found["adapters"] = {"servers": dict.fromkeys(names, told)}
    return found | more


@asynccontextmanager
async def gateway(
    folder: Path, *, servers: int = 1, slots: int | None = None, **more: Any
) -> AsyncIterator[tuple[Gateway, list[AdapterServer]]]:
    async with (
        adapter_server(token=TOKEN, slots=slots) as one,
        adapter_server(token=TOKEN, slots=slots) as two,
    ):
        used = [one, two][:servers]
        async with serving(folder / "policies", policy(*used, slots=slots, **more)) as found:
            yield found, used


async def ask(http: httpx.AsyncClient, model: str, **more: Any) -> httpx.Response:
    return await http.post("/v1/chat/completions", json={"model": model, **QUESTION}, **more)


def said(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


async def test_an_adapter_is_a_model_of_its_owner(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (found, (server,)):
        weights = safetensors(shapes())
        made = await create(found.http, "support", weights=weights, sha256=sha256(weights).hexdigest())
        assert made.status_code == 200, made.text
        assert made.json()["rank"] == 2 and made.json()["target_modules"] == ["q_proj"]
        assert made.json()["sha256"] == sha256(weights).hexdigest()
        answer = await ask(found.http, "base:support")
        assert said(answer) == sha256(weights).hexdigest()
        assert answer.json()["model"] == "base:support" == answer.headers["x-tollgate-model"]
        assert said(await ask(found.http, "base")) == "the base model"
        listed = {one["id"]: one for one in (await found.http.get("/v1/models")).json()["data"]}
        assert listed["base:support"]["parent"] == "base"
        assert (await found.http.get("/v1/models/base:support")).status_code == 200
        assert len(server.loads) == 1


async def test_to_others_it_does_not_exist(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (found, _):
        one = (await create(found.http, "support")).json()["id"]
        never = (await ask(found.http, "base:nothing", headers=OTHER)).json()
        for name in ("base:support", f"base:{one}"):
            answer = await ask(found.http, name, headers=OTHER)
            assert answer.status_code == 404
            assert answer.json()["error"] == {
                **never["error"],
                "message": never["error"]["message"].replace("base:nothing", name),
            }
        assert (await found.http.get(f"/v1/adapters/{one}", headers=OTHER)).status_code == 404
        assert (await found.http.delete(f"/v1/adapters/{one}", headers=OTHER)).status_code == 404
        assert (await found.http.get("/v1/adapters", headers=OTHER)).json()["data"] == []
        assert "base:support" not in (await found.http.get("/v1/models", headers=OTHER)).text
        narrow = {"authorization": f"Bearer {NARROW_KEY}"}  # of the same tenant, for other models
        assert (await ask(found.http, "base:support", headers=narrow)).status_code == 404
        own = await create(found.http, "support", seed=2, headers=OTHER)
        assert said(await ask(found.http, "base:support", headers=OTHER)) == own.json()["sha256"]
        assert said(await ask(found.http, "base:support")) != own.json()["sha256"]


async def test_one_that_is_shared_is_found_beside_an_own_of_its_name(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (found, _):
        made = (await create(found.http, "support", shared_with=["other"])).json()
        assert said(await ask(found.http, "base:support", headers=OTHER)) == made["sha256"]
        own = (await create(found.http, "support", seed=2, headers=OTHER)).json()
        assert said(await ask(found.http, "base:support", headers=OTHER)) == own["sha256"]
        assert said(await ask(found.http, f"base:{made['id']}", headers=OTHER)) == made["sha256"]
        assert (await found.http.delete(f"/v1/adapters/{made['id']}", headers=OTHER)).status_code == 404


async def test_deleted_it_is_gone_from_everywhere(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (found, (server,)):
        made = (await create(found.http, "support")).json()
        await ask(found.http, "base:support")
        assert (await found.http.delete(f"/v1/adapters/{made['id']}")).json()["deleted"]
        assert (await ask(found.http, "base:support")).status_code == 404
        async with asyncio.timeout(300):
            while server.served:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await create(found.http, "support", seed=2)).status_code == 200


async def test_a_model_of_the_policy_keeps_its_name(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (found, (server,)):
        made = (await create(found.http, "support")).json()
        changed = policy(server)
        changed["models"]["base:support"] = changed["models"]["fake"]
        found.write(changed)
        await found.generation(2)
        assert said(await ask(found.http, "base:support")) == "one two three"
        assert said(await ask(found.http, f"base:{made['id']}")) == made["sha256"]
        listed = [one["id"] for one in (await found.http.get("/v1/models")).json()["data"]]
        assert listed.count("base:support") == 1 and f"base:{made['id']}" in listed
        taken = await create(found.http, "support", headers=OTHER)
        assert taken.status_code == 409 and taken.json()["error"]["param"] == "name"


async def test_a_policy_without_adapters_has_none_and_a_later_one_has_them_again(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (found, (server,)):
        made = (await create(found.http, "support")).json()
        without = policy(server)
        del without["adapters"]
        found.write(without)
        await found.generation(2)
        assert (await ask(found.http, "base:support")).status_code == 404
        assert (await found.http.get("/v1/adapters")).status_code == 404
        assert said(await ask(found.http, "base")) == "the base model"
        found.write(policy(server))
        await found.generation(3)
        assert said(await ask(found.http, "base:support")) == made["sha256"]


async def test_in_the_background_it_waits_for_a_server_that_is_drained(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (found, (server,)):
        made = (await create(found.http, "support")).json()
        found.write(policy(server, drained=["engine0"]))
        await found.generation(2)
        asked = {"model": "base:support", "input": "Who are you?", "background": True}
        answer = (await found.http.post("/v1/responses", json=asked)).json()
        found.write(policy(server))
        async with asyncio.timeout(300):
            while answer["status"] in ("queued", "in_progress"):
                await asyncio.sleep(0.05)
                answer = (await found.http.get(f"/v1/responses/{answer['id']}")).json()
        assert answer["status"] == "completed" and made["sha256"] in json.dumps(answer["output"])


async def test_metrics_have_one_label_for_all_adapters_of_a_model(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (found, _):
        made = [(await create(found.http, f"a{number}", seed=number)).json() for number in range(2)]
        for one in made:
            said(await ask(found.http, one["model"]))
        async with asyncio.timeout(300):
            while 'tollgate_breaker_state{backend="engine0",model="adapter-*"}' not in await found.metrics():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        metrics = await found.metrics()
        assert metrics['tollgate_requests_total{backend="engine0",model="base:*",status="200"}'] == 2
        for one in made:
            assert not [name for name in metrics if one["model"] in name or one["id"] in name]
            await found.http.delete(f"/v1/adapters/{one['id']}")
        async with asyncio.timeout(300):
            while any("adapter-*" in name for name in await found.metrics()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_many_requests_wait_for_one_load(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (found, (server,)):
        server.load_seconds = 0.1
        made = (await create(found.http, "support")).json()
        answers = await asyncio.gather(*(ask(found.http, "base:support") for _ in range(8)))
        assert {said(answer) for answer in answers} == {made["sha256"]}
        assert len(server.loads) == 1


async def test_a_server_that_was_started_again_is_given_it_again(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (found, (server,)):
        made = (await create(found.http, "support")).json()
        assert said(await ask(found.http, "base:support")) == made["sha256"]
        server.restart()
        assert said(await ask(found.http, "base:support")) == made["sha256"]
        server.restart()
        streamed = await found.http.post(
            "/v1/chat/completions", json={"model": "base:support", "stream": True, **QUESTION}
        )
        assert made["sha256"] in streamed.text


async def test_one_whose_files_are_gone_is_sent_again(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (found, (server,)):
        made = (await create(found.http, "support")).json()
        await ask(found.http, "base:support")
        server.unreadable.add(made["id"])
        assert said(await ask(found.http, "base:support")) == made["sha256"]
        assert server.unloads == [made["id"]] and len(server.loads) == 2


async def test_one_makes_room_for_another(tmp_path: Path) -> None:
    async with gateway(tmp_path, slots=2) as (found, (server,)):
        made = [(await create(found.http, f"a{number}", seed=number)).json() for number in range(3)]
        for number in (0, 0, 0, 1, 2, 0):
            assert said(await ask(found.http, f"base:a{number}")) == made[number]["sha256"]
        assert server.most == 2
        assert server.unloads


async def test_it_goes_to_the_server_that_has_it(tmp_path: Path) -> None:
    async with gateway(tmp_path, servers=2) as (found, servers):
        await create(found.http, "support")
        for _ in range(6):
            await ask(found.http, "base:support")
        assert sorted(len(server.loads) for server in servers) == [0, 1]


async def test_what_cannot_be_loaded_is_told_and_holds_nobody_else_up(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (found, (server,)):
        await create(found.http, "wrong")
        server.refuses = "The adapter was made for another model."
        for _ in range(8):
            answer = await ask(found.http, "base:wrong")
            assert answer.status_code == 400
            assert "made for another model" in answer.json()["error"]["message"]
            assert answer.json()["error"]["code"] == "adapter_refused"
        server.refuses = None
        assert said(await ask(found.http, "base")) == "the base model"
        assert (await ask(found.http, "base:wrong")).status_code == 200


async def test_caches_never_give_one_adapters_answer_for_anothers(tmp_path: Path) -> None:
    async with gateway(tmp_path, caches={"exact": {"ttl": "1h"}}) as (found, (server,)):
        made = [(await create(found.http, f"a{number}", seed=number)).json() for number in range(2)]
        own = (await create(found.http, "a0", seed=7, headers=OTHER)).json()
        for _ in range(3):
            assert said(await ask(found.http, "base")) == "the base model"
            for number in range(2):
                assert said(await ask(found.http, f"base:a{number}")) == made[number]["sha256"]
            assert said(await ask(found.http, "base:a0", headers=OTHER)) == own["sha256"]
        assert len(server.asked) == 4
        await found.http.delete(f"/v1/adapters/{made[0]['id']}")
        again = (await create(found.http, "a0", seed=9)).json()
        assert said(await ask(found.http, "base:a0")) == again["sha256"]


async def test_nothing_stands_in_for_an_adapter(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (found, (server,)):
        await create(found.http, "support")
        changed = policy(server)
        changed["models"]["base"] |= {"fallbacks": ["fake"]}
        changed["tiers"] = {"free": {"on_saturation": {"action": "downgrade", "to": "fake", "at": 0.01}}}
        found.write(changed)
        await found.generation(2)
        server.refuses = "no"
        assert (await ask(found.http, "base:support")).status_code == 400
        server.token = "another"
        refused = await ask(found.http, "base:support")
        assert refused.status_code == 502 and "operator" in refused.json()["error"]["message"]


async def test_every_dialect_asks_it(tmp_path: Path) -> None:
    turn = [{"role": "user", "content": "Who are you?"}]
    google = {"contents": [{"role": "user", "parts": [{"text": "Who are you?"}]}]}
    async with gateway(tmp_path) as (found, _):
        made = (await create(found.http, "support")).json()
        for path, body in (
            ("/v1/completions", {"prompt": "Who are you?"}),
            ("/v1/responses", {"input": "Who are you?"}),
            ("/v1/messages", {"messages": turn, "max_tokens": 80}),
            ("/v1beta/models/base:support:generateContent", google),
        ):
            given = body if "v1beta" in path else {"model": "base:support", **body}
            answer = await found.http.post(path, json=given)
            assert answer.status_code == 200 and made["sha256"] in answer.text, answer.text
            refused = await found.http.post(path, json=given, headers=OTHER)
            assert refused.status_code == 404
            streamed = await found.http.post(
                path.replace(":generate", ":streamGenerate"),
                json=given if "v1beta" in path else {**given, "stream": True},
            )
            assert streamed.status_code == 200
        count = await found.http.post(
            "/v1/messages/count_tokens", json={"model": "base:support", "messages": turn}
        )
        assert count.status_code == 200 and count.json()["input_tokens"] > 0


async def test_batches_ask_it_for_its_owner_alone(tmp_path: Path) -> None:
    line = {"custom_id": "one", "method": "POST", "url": "/v1/chat/completions"}
    data = json.dumps({**line, "body": {"model": "base:support", **QUESTION}}).encode()
    async with gateway(tmp_path) as (found, _):
        made = (await create(found.http, "support")).json()

        async def batch(**more: Any) -> dict[str, Any]:
            form = {"data": {"purpose": "batch"}, "files": {"file": ("f.jsonl", data)}}
            file = (await found.http.post("/v1/files", **form, **more)).json()["id"]
            body = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
            known: dict[str, Any] = (await found.http.post("/v1/batches", json=body, **more)).json()
            async with asyncio.timeout(300):
                while known["status"] not in ("completed", "failed"):
                    await asyncio.sleep(0.02)
                    known = (await found.http.get(f"/v1/batches/{known['id']}", **more)).json()
            return known

        own, others = await asyncio.gather(batch(), batch(headers=OTHER))
        assert own["request_counts"]["completed"] == 1
        answers = (await found.http.get(f"/v1/files/{own['output_file_id']}/content")).text
        assert made["sha256"] in answers
        assert others["errors"]["data"][0]["code"] == "model_not_found"


async def test_what_holds_of_the_base_holds_of_it(tmp_path: Path) -> None:
    guards = {"words": {"kind": "topics", "words": ["forbidden"], "models": ["base"]}}
    prices = {"base": {"input": 1.0, "output": 2.0}}
    async with gateway(tmp_path, guards=guards, prices=prices) as (found, _):
        await create(found.http, "support")
        asked = {"messages": [{"role": "user", "content": "This is forbidden"}]}
        blocked = await found.http.post("/v1/chat/completions", json={"model": "base:support", **asked})
        assert blocked.status_code == 400 and blocked.json()["error"]["code"] == "content_policy_violation"
        answer = await ask(found.http, "base:support")
        receipt = (await found.http.get(f"/v1/requests/{answer.headers['x-request-id']}")).json()
        assert receipt["stages"]["adapter"]["backend"] == "engine0"
        assert receipt["stages"]["quota"]["cost_usd"] == pytest.approx(13e-6)
