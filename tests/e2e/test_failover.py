"""A stream that breaks off at one server goes on at the bundled engine, as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.conftest import OPERATOR, Stack
from tests.e2e.gateways import serving
from tests.fakes import Action, FakeUpstream, delta, sse, stream
from tests.sampling import slow
from tests.serving import key

pytestmark = pytest.mark.anyio

ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Tell me a story about a fox named Anna."}],
    "temperature": 0,
    "max_tokens": 120,
}


def policy(stack: Stack, upstream: FakeUpstream) -> dict[str, Any]:
    return {
        "version": 1,
        "backends": {
            "frail": {"kind": "openai", "base_url": upstream.base_url},
            "engine": {"kind": "engine", "base_url": stack.engine_url},
        },
        "models": {
            "chat": {
                "targets": [{"backend": "frail", "model": "x"}],
                "fallbacks": ["demo"],
                "timeouts": {"idle": "500ms"},
                "retry": {"attempts": 1},
            },
            "demo": {"targets": [{"backend": "engine", "model": "demo"}]},
        },
        "keys": [key("tg-failover", "k")],
    }


@pytest.mark.parametrize("end", [Action.ABORT, Action.CLOSE, Action.HANG], ids=["cut", "closed", "stalled"])
@pytest.mark.parametrize("share", [*slow(0.2), 2 / 3])
async def test_the_engine_takes_over_in_the_middle_of_an_answer(
    stack: Stack, upstream: FakeUpstream, tmp_path: Path, end: Action, share: float
) -> None:
    with serving(tmp_path, policy(stack, upstream)) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="tg-failover", max_retries=0)
        events = await client.chat.completions.create(model="demo", stream=True, **ASK)
        pieces = [event.choices[0].delta.content or "" async for event in events if event.choices]
        whole = "".join(pieces)
        assert len(whole) > 100
        said = [sse(delta(piece)) for piece in pieces[: int(len(pieces) * share)]]
        upstream.scripts = [stream(sse(delta("", role="assistant")), *said, end, whole=False)]
        events = await client.chat.completions.create(
            model="chat", stream=True, stream_options={"include_usage": True}, **ASK
        )
        text, models, finish, usage = "", [], None, None
        async for event in events:
            models.append(event.model)
            usage = event.usage or usage
            for choice in event.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
        assert text == whole, "nothing repeated, nothing lost"
        assert finish in ("stop", "length")
        assert (models[0], models[-1]) == ("chat", "demo"), "the caller sees who answers"
        assert usage is not None and abs(usage.completion_tokens - len(pieces)) <= 3, "billed once"
        raw = await client.chat.completions.with_raw_response.create(model="demo", **ASK)
        assert raw.headers["x-tollgate-model"] == "demo"
        await client.close()
        async with httpx.AsyncClient(trust_env=False) as http:
            page = (await http.get(f"{url}/metrics", headers=OPERATOR)).text
        assert 'tollgate_requests_total{backend="engine",model="chat",status="200"} 1.0' in page
