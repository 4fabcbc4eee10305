"""``POST /v1/requests/{id}/feedback``, and what operators read of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.json_server import json_server
from tests.serving import KEY, OTHER_KEY, Gateway, a_policy, chat, key, serving

pytestmark = pytest.mark.anyio
ADMIN_KEY = "tg-admin-1"


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    policy = a_policy("http://127.0.0.1:1/v1", admin={"enabled": True})
    policy["keys"].append(key(ADMIN_KEY, "admin-1", tenant="house", scopes=["admin"]))
    async with serving(tmp_path / "policies", policy) as running:
        yield running


async def asked(gateway: Gateway, token: str = KEY) -> str:
    headers = {"authorization": f"Bearer {token}"}
    answer = await gateway.http.post("/v1/chat/completions", json=chat(), headers=headers)
    return answer.headers["x-request-id"]


async def told(gateway: Gateway, request_id: str, token: str = KEY, **body: Any) -> Any:
    headers = {"authorization": f"Bearer {token}"}
    return await gateway.http.post(f"/v1/requests/{request_id}/feedback", json=body, headers=headers)


async def test_feedback_is_kept_and_operators_read_it(gateway: Gateway) -> None:
    first, second, third = [await asked(gateway) for _ in range(3)]
    answer = await told(gateway, first, score=1)
    assert answer.status_code == 200, answer.text
    assert answer.json() | {"created": 0} == {
        "id": first,
        "object": "tollgate.feedback",
        "created": 0,
        "model": "fake",
        "score": 1.0,
        "label": None,
        "comment": None,
    }
    await told(gateway, second, score=1.0)
    await told(gateway, second, score=0, label="wrong", comment="It is Tuesday.")
    await told(gateway, third, label="odd tone")
    admin = {"authorization": f"Bearer {ADMIN_KEY}"}
    read = await gateway.http.get("/admin/api/feedback?by=model&by=backend&comments=5", headers=admin)
    found = read.json()
    (row,) = found["rows"]
    assert (row["model"], row["backend"], row["count"], row["scored"], row["mean"]) == (
        "fake",
        "scripted",
        3,
        2,
        0.5,
    )
    assert row["low"] < 0.5 < row["high"]
    assert [(one["request_id"], one["label"]) for one in found["comments"]] == [
        (third, "odd tone"),
        (second, "wrong"),
    ]
    assert (await gateway.http.get("/admin/api/feedback")).status_code == 403
    row = (await gateway.http.get(f"/admin/api/requests/{first}", headers=admin)).json()["request"]
    assert row["score"] == 1.0, "the ledger's row has it, too"
    of_nobody = await gateway.http.get("/admin/api/feedback?tenant=nobody", headers=admin)
    assert of_nobody.json() == {"rows": [], "comments": []}


async def test_requests_of_others_do_not_exist(gateway: Gateway) -> None:
    request_id = await asked(gateway, OTHER_KEY)
    for token, name in ((KEY, request_id), (KEY, "req_never"), (OTHER_KEY, "x" * 300)):
        answer = await told(gateway, name, token, score=1)
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "invalid_request_error")
    assert (await told(gateway, request_id, OTHER_KEY, score=1)).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "score"),
        ({"score": None}, "score"),
        ({"score": 1.5}, "score"),
        ({"score": "1"}, "score"),
        ({"score": True}, "score"),
        ({"label": ""}, "label"),
        ({"label": " "}, "label"),
        ({"label": "x" * 65}, "label"),
        ({"label": "a\nb"}, "label"),
        ({"comment": "x" * 4001}, "comment"),
        ({"score": 1, "thumbs": "up"}, "thumbs"),
    ],
)
async def test_bad_bodies_are_refused_by_name(gateway: Gateway, body: dict[str, Any], param: str) -> None:
    answer = await told(gateway, await asked(gateway), **body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_large_body_and_no_json_are_refused(gateway: Gateway) -> None:
    path = f"/v1/requests/{await asked(gateway)}/feedback"
    assert (await gateway.http.post(path, content=b"x" * 40_000)).status_code == 413
    assert (await gateway.http.post(path, content=b"{")).status_code == 400
    assert (await gateway.http.get(path)).status_code == 405


async def test_it_counts_as_a_request(tmp_path: Path) -> None:
    policy = a_policy("http://127.0.0.1:1/v1", tenants={"acme": {"quotas": {"requests_per_minute": 2}}})
    async with serving(tmp_path / "policies", policy) as gateway:
        request_id = await asked(gateway)
        assert (await told(gateway, request_id, score=1)).status_code == 200
        assert (await told(gateway, request_id, score=1)).status_code == 429


@pytest.mark.parametrize("experiments", [{}, {"tone": {"arms": {"old": {}, "as-old": {}}}}])
async def test_a_roll_out_counts_the_first_score_of_an_answer_by_its_own_target(
    tmp_path: Path, experiments: dict[str, Any]
) -> None:
    rollout = {"to": {"backend": "scripted", "model": "new"}, "steps": [50, 100], "key": "conversation"}
    policy = a_policy("http://127.0.0.1:1/v1", admin={"enabled": True}, experiments=experiments)
    policy["models"]["fake"]["rollout"] = {**rollout, "guard": {"score": 1.0}}
    policy["keys"].append(key(ADMIN_KEY, "admin-1", tenant="house", scopes=["admin"]))
    async with serving(tmp_path / "policies", policy) as gateway:
        for number in range(12):
            headers = {"authorization": f"Bearer {KEY}"}
            body = chat(content=f"{number}?")
            answer = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
            for score in (1.0, 0.0):
                assert (await told(gateway, answer.headers["x-request-id"], score=score)).status_code == 200
        admin = {"authorization": f"Bearer {ADMIN_KEY}"}
        async with asyncio.timeout(300):
            while True:
                found = (await gateway.http.get("/admin/api/rollouts", headers=admin)).json()["rollouts"][0]
                if found["new"]["scored"] + found["control"]["scored"] >= 12:
                    break
                await asyncio.sleep(0.05)
    assert found["new"]["scored"] + found["control"]["scored"] == 12
    assert {found["new"]["score"], found["control"]["score"]} == {1.0}


async def test_a_comment_on_what_a_guard_kept_here_stays_here(tmp_path: Path) -> None:
    with json_server() as tool:
        telemetry = {
            "endpoint": tool.url,
            "metrics": False,
            "content": True,
            "scores": {"receiver": "phoenix"},
        }
        guard = {"kind": "topics", "on": ["input"], "action": "local", "words": ["alpha"]}
        policy = a_policy("http://127.0.0.1:1/v1", telemetry=telemetry, guards={"keep": guard})
        async with serving(tmp_path / "policies", policy) as gateway:
            for text in ("Project alpha?", "Project beta?"):
                headers = {"authorization": f"Bearer {KEY}"}
                body = chat(content=text)
                answer = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
                request_id = answer.headers["x-request-id"]
                said = await told(gateway, request_id, score=0, comment=f"Of {text}")
                assert said.status_code == 200
    bodies = tool.bodies("/v1/span_annotations")
    found = [one["result"] for body in bodies for one in body["data"]]
    assert sorted(found, key=len) == [{"score": 0.0}, {"score": 0.0, "explanation": "Of Project beta?"}]
