"""An imported policy serves as the configuration did: aliases, fallbacks, weights, order, and callers' own keys."""

from __future__ import annotations

from collections import Counter
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.lab.migration import litellm
from tests.fakes import FakeUpstream, completion, reply
from tests.serving import Gateway, chat, serving

pytestmark = pytest.mark.anyio

OLD_KEY = "sk-callers-old-key-1234"
ERROR = {"error": {"message": "out of order", "type": "server_error", "param": None, "code": None}}


def deployment(name: str, model: str, port: int, **more: int) -> dict[str, Any]:
    params = {"model": f"openai/{model}", "api_base": f"http://127.0.0.1:{port}/v1", "api_key": "k", **more}
    return {"model_name": name, "litellm_params": params}


def config(good: int, bad: int) -> dict[str, Any]:
    return {
        "model_list": [
            deployment("main", "heavy", good, weight=9),
            deployment("main", "light", good, weight=1),
            deployment("broken", "broken", bad),
            deployment("spare", "spare", good),
            deployment("ordered", "first", bad, order=1),
            deployment("ordered", "second", good, order=2),
        ],
        "router_settings": {"model_group_alias": {"gpt-4": "main"}, "num_retries": 0},
        "litellm_settings": {"fallbacks": [{"broken": ["spare"]}]},
    }


async def ask(gateway: Gateway, model: str, key: str = OLD_KEY) -> httpx.Response:
    return await gateway.http.post(
        "/v1/chat/completions", json=chat(model), headers={"authorization": f"Bearer {key}"}
    )


async def test_an_imported_policy_serves_as_the_configuration_did(tmp_path: Path, monkeypatch: Any) -> None:
    rows = [
        {"token": sha256(OLD_KEY.encode()).hexdigest(), "key_alias": "caller"},
        {"token": sha256(b"sk-narrow-old-key-5678").hexdigest(), "key_alias": "narrow", "models": ["spare"]},
    ]
    async with FakeUpstream(reply(completion())) as good, FakeUpstream(reply(ERROR, status=500)) as bad:
        draft = litellm.imported(
            config(good.port, bad.port), source="config.yaml", env={}, rows=rows, today=date(2030, 1, 1)
        )
        for name, value in draft.secrets.items():
            monkeypatch.setenv(name, value)
        async with serving(tmp_path / "policies", {**draft.content, "keys": draft.keys}) as gateway:
            for _ in range(60):
                assert (await ask(gateway, "gpt-4")).status_code == 200
            drawn = Counter(request.json()["model"] for request in good.requests)
            assert set(drawn) == {"heavy", "light"} and drawn["heavy"] > 40
            assert good.requests[0].headers["authorization"] == "Bearer k"

            answer = await ask(gateway, "broken")
            assert (answer.status_code, answer.headers["x-tollgate-model"]) == (200, "spare")
            answer = await ask(gateway, "ordered")
            assert (answer.status_code, good.requests[-1].json()["model"]) == (200, "second")
            assert [request.json()["model"] for request in bad.requests] == ["broken", "first"]

            assert (await ask(gateway, "unknown")).status_code == 404
            assert (await ask(gateway, "main", "sk-not-a-key-of-ours-1")).status_code == 401
            narrow = "sk-narrow-old-key-5678"
            assert (await ask(gateway, "spare", narrow)).status_code == 200
            assert (await ask(gateway, "main", narrow)).status_code in (403, 404)
