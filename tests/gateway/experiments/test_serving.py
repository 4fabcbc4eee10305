"""Experiments on a gateway over real sockets: what its provider is sent, and what comes of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.__main__ import main
from tests.e2e.keys.harness import joined
from tests.fakes import FakeUpstream, completion, reply
from tests.serving import KEY, Gateway, a_policy, key, serving

pytestmark = pytest.mark.anyio

ALL, NOBODY = 1e6, 1e-6
MAIL = "Write to joe@example.com."


@pytest.fixture
async def upstream() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream() as server:
        server.scripts = [reply(completion("Hello."))]
        yield server


def policy_of(upstream: FakeUpstream, new: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An experiment whose arm ``new`` everybody has; ``fresh`` is another model of the same server."""
    arms = {"old": {"weight": NOBODY}, "new": {"weight": ALL, **new}}
    given = {
        "admin": {"enabled": True},
        "models": {"fresh": {"targets": [{"backend": "up", "model": "fresh-model"}]}},
        "prompts": {"brief@1": "Be brief."},
        "keys": [key(KEY, "boss", tenant="acme", scopes=["admin", "inference"])],
        "experiments": {"tone": {"arms": arms, "where": {"models": ["up"]}}},
    }
    whole: dict[str, Any] = joined(joined(a_policy(upstream.base_url), given), more)
    return whole


def chat(content: str = "Hi", **more: Any) -> dict[str, Any]:
    return {"model": "up", "messages": [{"role": "user", "content": content}], **more}


async def ask(gateway: Gateway, body: Any, path: str = "/v1/chat/completions") -> httpx.Response:
    return await gateway.http.post(path, json=body)


async def receipt(gateway: Gateway, response: httpx.Response) -> dict[str, Any]:
    async with asyncio.timeout(300):
        path = f"/v1/requests/{response.headers['x-request-id']}"
        while (found := await gateway.http.get(path)).status_code == 404:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    stages: dict[str, Any] = found.json()["stages"]
    return stages


HI = {"role": "user", "content": "Hi"}
DIALECTS = {
    "chat": (
        "/v1/chat/completions",
        {"model": "up", "messages": [{"role": "system", "content": "Sell."}, HI]},
    ),
    "responses": ("/v1/responses", {"model": "up", "input": "Hi", "instructions": "Sell.", "store": False}),
    "anthropic": ("/v1/messages", {"model": "up", "max_tokens": 9, "system": "Sell.", "messages": [HI]}),
    "gemini": (
        "/v1beta/models/up:generateContent",
        {
            "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
            "systemInstruction": {"parts": [{"text": "Sell."}]},
        },
    ),
}


@pytest.mark.parametrize("place", ["before", "instead"])
async def test_a_provider_sees_the_arms_prompt_in_every_dialect(
    upstream: FakeUpstream, tmp_path: Path, place: str
) -> None:
    arm = {"prompt": "brief@1", "prompt_place": place, "model": "fresh"}
    async with serving(tmp_path / "p", policy_of(upstream, arm)) as gateway:
        for name, (path, body) in DIALECTS.items():
            answer = await ask(gateway, body, path)
            assert answer.status_code == 200, (name, answer.text)
            assert answer.headers["x-tollgate-model"] == "fresh"
            sent = upstream.requests[-1].json()
            assert sent["model"] == "fresh-model"
            system = "".join(
                json.dumps(one["content"]) for one in sent["messages"] if one["role"] == "system"
            )
            assert "Be brief." in system and ("Sell." in system) == (place == "before"), (name, system)
            assert "Hi" in json.dumps(sent["messages"][-1])
        noted = (await receipt(gateway, answer))["experiment"]
        assert (noted["arm"], noted["prompt"], len(noted["digest"])) == ("new", "brief@1", 8)


async def test_limits_and_caches_see_the_arms_prompt(upstream: FakeUpstream, tmp_path: Path) -> None:
    long = "Be brief. " * 500
    halves = {
        "experiments": {"tone": {"arms": {"old": {"weight": 1.0}, "new": {"weight": 1.0, "prompt": None}}}}
    }
    more = {"prompts": {"brief@1": long}, "caches": {"exact": {"ttl": "1h"}}}
    limits = {"tenants": {"acme": {"quotas": {"tokens_per_minute": 1000}}}}
    async with serving(
        tmp_path / "a" / "p", policy_of(upstream, {"prompt": "brief@1"}, **more, **limits)
    ) as gateway:
        answer = await ask(gateway, chat(max_tokens=5))
        assert answer.status_code == 400 or answer.status_code == 429, "its prompt alone is beyond the quota"
    async with serving(tmp_path / "b" / "p", policy_of(upstream, {}, **more, **halves)) as gateway:
        # The same question, of many users: each arm asks the server once.
        answers = [await ask(gateway, chat(user=f"u{one}")) for one in range(24)]
        assert {one.headers["x-tollgate-cache"] for one in answers} == {"exact", "miss"}
        assert len(upstream.requests) == 2
        arms = {(await receipt(gateway, one))["experiment"]["arm"] for one in answers[:12]}
        assert arms == {"old", "new"}


async def test_an_arm_never_loses_a_guard_that_it_does_not_name(
    upstream: FakeUpstream, tmp_path: Path
) -> None:
    guards = {
        "of_asked": {"kind": "pii", "on": ["input"], "action": "block", "models": ["up"]},
        "of_arm": {"kind": "length", "on": ["input"], "max_characters": 100},
    }
    arm = {"model": "fresh", "guards": ["of_arm"]}
    async with serving(tmp_path / "p", policy_of(upstream, arm, guards=guards)) as gateway:
        assert (await ask(gateway, chat("Hello"))).status_code == 200
        blocked = await ask(gateway, chat(MAIL))
        assert blocked.status_code == 400, (
            "another model is asked, and the guard of the one that was asked for stays"
        )
        assert (await ask(gateway, chat("Hello " * 50))).status_code == 400
        others = await ask(gateway, {**chat("Hello " * 50), "model": "fresh"})
        assert others.status_code == 200, "who is in no experiment has no guard of an arm's"
        assert "experiment" not in await receipt(gateway, others)


async def test_nobody_is_refused_for_being_part_of_one(upstream: FakeUpstream, tmp_path: Path) -> None:
    """Who may not have every arm is part of none: by where the content goes, by media, by what is in use."""
    near = {"kind": "openai", "base_url": upstream.base_url, "api_key": "sk-1", "local": True}
    keyless = {"kind": "openai", "base_url": upstream.base_url, "api_key": "${NO_SUCH_KEY}"}
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    for number, (arm, more, body) in enumerate(
        (
            ({"model": "fresh"}, {"tenants": {"acme": {"local_only": True}}}, chat()),
            ({"model": "blind"}, {}, chat([{"type": "text", "text": "Look"}, picture])),  # type: ignore[arg-type]
            ({"model": "away"}, {}, chat()),
        )
    ):
        whole = policy_of(upstream, arm, **more)
        whole["backends"] |= {"up": {**near}, "far": {**near, "local": False}, "keyless": keyless}
        for name, backend in (("fresh", "far"), ("away", "keyless"), ("blind", "up")):
            whole["models"][name] = {"targets": [{"backend": backend, "model": "x"}]}
        whole["models"]["blind"]["input"] = ["text"]
        async with serving(tmp_path / str(number) / "p", whole) as gateway:
            answer = await ask(gateway, body)
            assert (answer.status_code, answer.headers["x-tollgate-model"]) == (200, "up"), answer.text
            assert "experiment" not in await receipt(gateway, answer)


async def test_a_prompts_file_takes_effect_without_a_restart(upstream: FakeUpstream, tmp_path: Path) -> None:
    whole = policy_of(upstream, {"prompt": "brief@2"})
    file = tmp_path / "p" / "brief@2.prompt.md"
    file.parent.mkdir(parents=True)
    file.write_text("Be *brief*: ${no variable}.\n")
    async with serving(tmp_path / "p", whole) as gateway:
        first = await ask(gateway, chat())
        assert upstream.requests[-1].json()["messages"][0]["content"] == "Be *brief*: ${no variable}."
        file.write_text("Be kind.\n")
        async with asyncio.timeout(300):
            while upstream.requests[-1].json()["messages"][0]["content"] != "Be kind.":
                then = await ask(gateway, chat())
        runs = [(await receipt(gateway, one))["experiment"] for one in (first, then)]
        assert runs[0]["name"] != runs[1]["name"] and runs[0]["assignee"] == runs[1]["assignee"]


async def test_results_are_of_users_by_scores_and_told_alike_everywhere(
    upstream: FakeUpstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = {"arms": {"old": {"weight": 1.0}, "new": {"weight": 1.0, "model": "fresh"}}}
    experiments = {"experiments": {"tone": {**arms, "metrics": ["score", "errors", "blocked"]}}}
    async with serving(tmp_path / "p", policy_of(upstream, {}, **experiments)) as gateway:

        async def rated(user: int) -> None:
            answer = await ask(gateway, chat(user=f"user-{user}"))
            better = answer.headers["x-tollgate-model"] == "fresh"
            path = f"/v1/requests/{answer.headers['x-request-id']}/feedback"
            score = (0.8 if better else 0.3) + user % 3 / 10
            assert (await gateway.http.post(path, json={"score": score})).is_success

        for start in range(0, 140, 20):
            await asyncio.gather(*(rated(start + one) for one in range(20)))
        async with asyncio.timeout(300):
            while True:
                found = (await gateway.http.get("/admin/api/experiments")).json()["experiments"][0]
                if sum(arm["figures"][0]["requests"] for arm in found["arms"]) == 140:
                    break
        old, new = found["arms"]
        assert old["users"] + new["users"] == 140 and not found["mismatch"]
        score, errors, blocked = new["figures"]
        assert score["verdict"] == "better"
        assert 0.3 < score["difference_low"] < 0.5 < score["difference_high"] < 0.7
        assert (errors["mean"], errors["verdict"], blocked["verdict"]) == (
            0.0,
            "no difference",
            "no difference",
        )
        assert found["confidence"] == pytest.approx(1 - 0.05 / 3)
        ledger = str(tmp_path / "state" / "ledger.sqlite")
        command = ["experiments", "--policies", str(tmp_path / "p"), "--ledger", ledger]
        assert await asyncio.to_thread(main, [*command, "--json"]) == 0
        [told] = json.loads(capsys.readouterr().out)
        assert told["arms"][1]["figures"][0]["difference"] == pytest.approx(score["difference"])
        assert await asyncio.to_thread(main, command) == 0
        assert "better" in capsys.readouterr().out
        assert await asyncio.to_thread(main, [*command, "tome"]) == 2
        assert "did you mean 'tone'?" in capsys.readouterr().err
