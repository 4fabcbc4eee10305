"""A backend drained, or its key unset, for a few seconds: what becomes of a batch on it, and what are callers told?"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from benchmarks.attacks.frame import ALICE, Gateway, Rig, must
from benchmarks.attacks.frame.rig import a_key
from tests.fakes import FakeUpstream, completion, reply

POINT = "30.1"
TRIED = "a batch of 60 lines, its backend drained for 2 s over the admin API, then its api_key's variable unset for 2 s"
HOLDS = "every line is answered in the end; callers get 503 with Retry-After meanwhile, and the model stays listed"

OPS = {"authorization": "Bearer tg-ops-1"}
AS_ALICE = {"authorization": f"Bearer {ALICE}"}
LINES = 60


async def attack(rig: Rig) -> str:
    upstream = await rig.upstream((0.3, *reply(completion())))
    policy = _policy(rig, upstream)
    gateway = await rig.gateway(policy)
    batch = await _begin(gateway)
    await _answered(gateway, batch, 3)
    must(
        (await gateway.http.post("/admin/api/backends/o/drain", headers=OPS)).is_success, "it was not drained"
    )
    await asyncio.sleep(1)
    refused = await gateway.chat(ALICE, model="busy")
    listed = [one["id"] for one in (await gateway.http.get("/v1/models", headers=AS_ALICE)).json()["data"]]
    must(refused.status_code == 503, f"a caller got {refused.status_code}")
    must("retry-after" in refused.headers, "a caller got no Retry-After")
    must("busy" in listed, "the model was not listed")
    await asyncio.sleep(1)
    must(
        (await gateway.http.post("/admin/api/backends/o/undrain", headers=OPS)).is_success,
        "it stayed drained",
    )
    await _answered(gateway, batch, 20)
    gateway.write(_policy(rig, upstream, api_key="${NOBODY_SETS_THIS}"))
    await asyncio.sleep(3)
    gateway.write(policy)
    counts = await _answered(gateway, batch, LINES)
    must(counts["failed"] == 0, f"{counts['failed']} of {LINES} lines failed for good")
    return (
        f"{counts['completed']} of {LINES} lines answered; 503, Retry-After {refused.headers['retry-after']}"
    )


def _policy(rig: Rig, upstream: FakeUpstream, api_key: str = "sk-1") -> dict[str, Any]:
    backend = {"kind": "openai", "base_url": upstream.base_url, "api_key": api_key, "max_concurrency": 4}
    policy = rig.policy(
        backends={"o": backend},
        models={"busy": {"targets": [{"backend": "o", "model": "busy"}]}},
        admin={"enabled": True},
    )
    policy["keys"].append(a_key("tg-ops-1", "ops", tenant="ops", scopes=["admin"]))
    return policy


async def _begin(gateway: Gateway) -> str:
    body = {"model": "busy", "messages": [{"role": "user", "content": "Hi"}]}
    lines = [
        {"custom_id": f"{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number in range(LINES)
    ]
    written = b"\n".join(map(orjson.dumps, lines))
    form: dict[str, Any] = {"data": {"purpose": "batch"}, "files": {"file": ("lines.jsonl", written)}}
    file = (await gateway.http.post("/v1/files", headers=AS_ALICE, **form)).json()
    asked = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return str((await gateway.post(ALICE, asked, "/v1/batches")).json()["id"])


async def _answered(gateway: Gateway, batch: str, lines: int) -> dict[str, int]:
    """Wait until so many lines have a result, a good or a bad one."""
    async with asyncio.timeout(120):
        while True:
            told = (await gateway.http.get(f"/v1/batches/{batch}", headers=AS_ALICE)).json()
            counts: dict[str, int] = told["request_counts"]
            if counts["completed"] + counts["failed"] >= lines:
                return counts
            await asyncio.sleep(0.1)
