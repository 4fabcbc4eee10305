"""Lines whose answers a guard cannot judge for a while: what passes by itself is waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.batches.outcome import MOST_FAILURES
from gateway.guards.streaming import streams
from tests.fakes import FakeUpstream, completion, reply
from tests.gateway.batches.submitting import client, content, create, end, line
from tests.guard_server import GuardServer
from tests.serving import Gateway, a_policy, serving

pytestmark = pytest.mark.anyio


async def batch_of_one(gateway: Gateway) -> tuple[Any, list[dict[str, Any]]]:
    async with client(gateway) as openai:
        done = await end(openai, await create(openai, line("line 1", model="up")))
        return done.request_counts, await content(openai, done.output_file_id or done.error_file_id)


@pytest.mark.parametrize("failures", [MOST_FAILURES - 1, MOST_FAILURES])
async def test_an_answer_that_cannot_be_judged_is_computed_anew(
    failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times at most: each costs what a model computes."""
    monkeypatch.setattr(streams, "RESTARTED", 0.1)

    def judged(_: Any) -> Any:
        asked = len(up.requests)
        return reply({}, status=500) if asked <= failures else {"verdicts": [{}]}

    async with GuardServer(judged) as judge, FakeUpstream(reply(completion())) as up:
        policy = a_policy(up.base_url, guards={"webhook": {"url": judge.url, "on": ["output"]}})
        async with serving(tmp_path / "policies", policy) as gateway:
            counts, (told,) = await batch_of_one(gateway)
    assert len(up.requests) == min(failures + 1, MOST_FAILURES)
    if failures < MOST_FAILURES:
        assert counts.completed == 1
        assert told["response"]["body"]["choices"][0]["message"]["content"] == "Hello there"
    else:
        assert counts.failed == 1
        assert told["response"]["status_code"] == 503
        assert told["response"]["body"]["error"]["code"] == "guard_unavailable"
