"""Batches whose backend is out of use for a while: their lines wait for it, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.backoff import Backoff
from gateway.batches import outcome
from gateway.batches.batch import ENDED
from tests.fakes import FakeUpstream, completion, reply
from tests.gateway.batches.submitting import client, content, create, end, line, until
from tests.serving import Gateway, a_policy, serving

pytestmark = pytest.mark.anyio

TOO_LONG = {"error": {"message": "prompt is too long", "code": "context_length_exceeded"}}
LINES = [line(f"line {number}", f"Hi {number}", model="m") for number in range(20)]


def policy(upstream: FakeUpstream, api_key: str = "sk-1", **more: Any) -> dict[str, Any]:
    """``m`` is served by ``o``."""
    whole = a_policy(upstream.base_url, **more)
    whole["backends"]["o"] = {
        "kind": "openai",
        "base_url": upstream.base_url,
        "api_key": api_key,
        "max_concurrency": 2,
    }
    whole["models"]["m"] = {"targets": [{"backend": "o", "model": "m"}]}
    return whole


@pytest.fixture
async def gateway(tmp_path: Path, upstream: FakeUpstream, quick_reload: None) -> AsyncIterator[Gateway]:
    async with serving(tmp_path / "policies", policy(upstream)) as running:
        yield running


OUT = [
    pytest.param({"drained": ["o"]}, id="drained"),
    pytest.param({"api_key": "${NOBODY_SETS_THIS}"}, id="key not set"),
]


@pytest.mark.parametrize("out", OUT)
async def test_its_lines_wait_until_it_is_used_again(
    out: dict[str, Any], gateway: Gateway, upstream: FakeUpstream
) -> None:
    upstream.scripts = [(0.2, *reply(completion()))]
    async with client(gateway) as openai:
        batch = await create(openai, *LINES)
        await until(openai, batch, 3)
        gateway.write(policy(upstream, **out))
        await gateway.generation(2)
        sent = len(upstream.requests)
        await asyncio.sleep(1.5)
        assert (await openai.batches.retrieve(batch.id)).status == "in_progress"
        assert len(upstream.requests) <= sent + 2, "but those that were on their way"
        gateway.write(policy(upstream))
        done = await end(openai, batch)
        assert done.request_counts is not None
        assert done.request_counts.model_dump() == {"total": 20, "completed": 20, "failed": 0}
        assert done.error_file_id is None


@pytest.mark.parametrize("out", OUT)
async def test_they_go_on_at_once_when_it_is_used_again(
    out: dict[str, Any], gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the pause has grown to: the policy's change ends it."""
    monkeypatch.setattr(outcome, "BACKOFF", Backoff(3600.0, most=3600.0))
    gateway.write(policy(upstream, **out))
    await gateway.generation(2)
    upstream.scripts = [reply(completion())]
    async with client(gateway) as openai:
        batch = await create(openai, *LINES[:3])
        async with asyncio.timeout(300):
            while not (await gateway.metrics()).get('tollgate_batch_line_runs_total{outcome="repeated"}'):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        gateway.write(policy(upstream))
        async with asyncio.timeout(120):
            done = await end(openai, batch)
        assert (done.request_counts.completed, done.error_file_id) == (3, None)  # type: ignore[union-attr]


@pytest.mark.parametrize("out", OUT)
async def test_one_made_meanwhile_waits_too(
    out: dict[str, Any], gateway: Gateway, upstream: FakeUpstream
) -> None:
    gateway.write(policy(upstream, **out))
    await gateway.generation(2)
    upstream.scripts = [reply(completion())]
    async with client(gateway) as openai:
        batch = await create(openai, *LINES[:3])
        await asyncio.sleep(1.0)
        assert (await openai.batches.retrieve(batch.id)).request_counts.failed == 0  # type: ignore[union-attr]
        gateway.write(policy(upstream))
        done = await end(openai, batch)
        assert (done.request_counts.completed, done.error_file_id) == (3, None)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("refusal", "refuses", "model"),
    [
        pytest.param(TOO_LONG, 400, {"fallbacks": ["up"]}, id="too long for its fallback"),
        pytest.param({"error": {"message": "no"}}, 422, {"fallbacks": ["up"]}, id="refused by its fallback"),
        pytest.param({"error": {"message": "oh"}}, 500, {"fallbacks": ["up"]}, id="its fallback fails"),
    ],
)
async def test_what_its_stand_in_refuses_waits_for_it(
    refusal: dict[str, Any],
    refuses: int,
    model: dict[str, Any],
    gateway: Gateway,
    upstream: FakeUpstream,
) -> None:
    rules = policy(upstream, drained=["o"])
    rules["models"]["m"] |= model
    rules["backends"]["up"]["breaker"] = {"failures": 1000}
    gateway.write(rules)
    await gateway.generation(2)
    upstream.scripts = [reply(refusal, status=refuses)]
    async with client(gateway) as openai:
        batch = await create(openai, *LINES[:1])
        async with asyncio.timeout(300):
            while len(upstream.requests) < (4 if refuses == 500 else 2) and batch.status not in ENDED:
                await asyncio.sleep(0.05)
                batch = await openai.batches.retrieve(batch.id)
        assert (batch.status, batch.request_counts.failed) == ("in_progress", 0)  # type: ignore[union-attr]
        upstream.scripts = [reply(completion())]
        gateway.write({**rules, "drained": []})
        done = await end(openai, batch)
        assert (done.request_counts.completed, done.error_file_id) == (1, None)  # type: ignore[union-attr]
        assert done.output_file_id is not None
        assert len(await content(openai, done.output_file_id)) == 1
