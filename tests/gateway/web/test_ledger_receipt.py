"""What the ledger has of a request outlives its receipt: how it went, who asked, under which tags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes import FakeUpstream, Script, answer_events, completion, delta, reply, sse, stream
from tests.serving import OTHER_KEY, a_policy, serving

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
REFUSED = [
    *(sse(delta(refusal=text)) for text in ("I will ", "not.")),
    *answer_events(finish="stop")[1:],
]


class Told(FakeUpstream):
    """Answers as it is told."""

    answer: Script = reply(completion())

    def next_script(self) -> Script:
        return self.answer


async def receipts(folder: Path, policy: dict[str, Any], ids: dict[str, str]) -> dict[str, dict[str, Any]]:
    """As a gateway has them that was started after they were written, and so by its ledger alone."""
    async with serving(folder, policy) as gateway:
        found = {name: (await gateway.http.get(f"/v1/requests/{one}")).json() for name, one in ids.items()}
        other = {"authorization": f"Bearer {OTHER_KEY}"}
        path = f"/v1/requests/{ids['streamed']}"
        assert (await gateway.http.get(path, headers=other)).status_code == 404, "it is another tenant's"
        assert (await gateway.http.get("/v1/requests/req_nobody")).status_code == 404
        return found


async def test_what_the_ledger_has_of_a_request_outlives_its_receipt(tmp_path: Path) -> None:
    async with Told() as upstream:
        policy = a_policy(upstream.base_url, caches={"exact": {"ttl": "1h"}})
        policy["prices"] = {"upstream-model": {"input": 1.0, "output": 2.0}}
        ids = {}
        asked = {"model": "up", "messages": [{"role": "user", "content": "Hi"}]}

        async with serving(tmp_path / "policies", policy) as gateway:

            async def ask(name: str, answer: Script, *, tags: str = "", **more: Any) -> httpx.Response:
                upstream.answer = answer
                headers = {"x-tollgate-tags": tags} if tags else {}
                got = await gateway.http.post(CHAT, json={**asked, **more}, headers=headers)
                ids[name] = got.headers["x-request-id"]
                return got

            await ask(
                "streamed",
                stream(*answer_events("One", " two", " three")),
                stream=True,
                user="bob",
                tags="b, a",
            )
            await ask("whole", reply(completion("Hello")), metadata={"user_id": "bob"}, seed=1)
            await ask("again", reply(completion("Hello")), metadata={"user_id": "bob"}, seed=1)
            await ask("refused", stream(*REFUSED), stream=True, seed=2)
            await ask(
                "failed", reply({"error": {"message": "no"}}, status=400), seed=3, safety_identifier="eve"
            )
            bad = await ask("tagged", reply(completion("Hello")), tags="a b")
            assert bad.status_code == 400 and "x-tollgate-tags" in bad.text
            assert (await ask("many", reply(completion()), tags=",".join("abcdefghi"))).status_code == 400
            live = (await gateway.http.get(f"/v1/requests/{ids['streamed']}")).json()
            assert "source" not in live
        found = await receipts(tmp_path / "policies", policy, ids)

    streamed = found["streamed"]
    assert (streamed["object"], streamed["source"], streamed["id"]) == (
        "tollgate.receipt",
        "ledger",
        ids["streamed"],
    )
    measured = {name: one["stages"]["meter"] for name, one in found.items() if "stages" in one}
    assert measured["streamed"]["finish_reason"] == "stop" and measured["streamed"]["tags"] == ["a", "b"]
    # Where all of it came in one piece there is no time between.
    assert ("inter_token" in measured["streamed"]) == (live["stages"]["meter"]["chunks_after_first"] > 0)
    assert measured["refused"]["refused"] is True and "refused" not in measured["streamed"]
    assert live["stages"]["meter"]["first_token"] == measured["streamed"]["first_token"]
    assert live["stages"]["quota"]["cost_usd"] == streamed["stages"]["quota"]["cost_usd"] > 0
    assert measured["streamed"]["end_user"] == measured["whole"]["end_user"] != measured["failed"]["end_user"]
    assert "inter_token" not in measured["whole"] and measured["whole"]["finish_reason"] == "stop"
    assert measured["again"]["completion_tokens"] == measured["whole"]["completion_tokens"] > 0
    assert found["again"]["stages"]["quota"]["cost_usd"] == 0
    assert found["failed"]["stages"]["trace"]["status"] == 400
    assert measured["failed"]["error"] == "upstream_rejected"
    assert found["tagged"]["stages"]["meter"]["error"] == "invalid_value"
