"""A script that refuses costs what a server's refusal costs: nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving import a_policy, chat, serving

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
async def test_a_scripted_refusal_is_not_billed(status: int, tmp_path: Path) -> None:
    policy = a_policy("http://127.0.0.1:1/v1")
    policy["backends"]["scripted"]["script"] = [{"reply": "no", "status": status}]
    policy["prices"] = {"x": {"input": 1000.0, "output": 1000.0}}
    policy["tenants"] = {"acme": {"budget": {"usd_per_day": 100.0}}}
    async with serving(tmp_path, policy) as gateway:
        answer = await gateway.http.post("/v1/chat/completions", json=chat("fake", max_tokens=50))
        assert answer.status_code >= 400
        receipt = (await gateway.http.get(f"/v1/requests/{answer.headers['x-request-id']}")).json()
    assert receipt["stages"]["quota"]["reserved_usd"] > 0
    assert receipt["stages"]["quota"]["cost_usd"] == 0
