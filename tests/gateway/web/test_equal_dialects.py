"""Callers and servers that both speak OpenAI's API: what the gateway does not know passes through it, byte for byte.

Anthropic's pair is in test_anthropic_native.py.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes import FakeUpstream, reply, stream
from tests.serving import Gateway, a_policy, serving

pytestmark = pytest.mark.anyio

NEW: dict[str, Any] = {
    "nested": {"list": [1, 1.0, 1e-7, -0.0, True, None, 'é\u2028\U0001f600\\"/'], "empty": [{}, [], ""]},
    "number": 9007199254740993,
    "text": "a  b\n",
}
"""Values whose bytes differ if somebody reads and writes them carelessly."""
TOOL = {
    "type": "function",
    "of_tomorrow": NEW,
    "function": {"name": "f", "parameters": {"type": "object", "x": NEW}, "of_tomorrow": NEW},
}
MESSAGES = [
    {"role": "system", "content": "Be brief.", "of_tomorrow": NEW},
    {
        "role": "user",
        "content": [{"type": "text", "text": "Hi", "of_tomorrow": NEW}, {"type": "of_tomorrow", **NEW}],
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "of_tomorrow": NEW,
                "function": {"name": "f", "arguments": '{"a":  1}', "of_tomorrow": NEW},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "ok", "of_tomorrow": NEW},
]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "tools": [TOOL], "temperature": 1.0},
    "/v1/completions": {"prompt": "Once", "temperature": 0.5},
    "/v1/embeddings": {"input": ["Once", "twice"]},
}
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "total_tokens": 5,
    "prompt_tokens_details": {"cached_tokens": 1, "of_tomorrow": NEW},
    "completion_tokens_details": {"reasoning_tokens": 0, "of_tomorrow": NEW},
    "of_tomorrow": NEW,
}
LOGPROBS = {
    "content": [{"token": "H", "logprob": -0.5, "bytes": [72], "top_logprobs": [], "of_tomorrow": NEW}]
}
CALL = {
    "id": "c1",
    "type": "function",
    "of_tomorrow": NEW,
    "function": {"name": "f", "arguments": '{"a":  1}', "of_tomorrow": NEW},
}
TOLD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "upstream-model",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": "Hi",
                    "refusal": None,
                    "annotations": [{"type": "of_tomorrow", **NEW}],
                    "tool_calls": [CALL],
                    "of_tomorrow": NEW,
                },
                "logprobs": {**LOGPROBS, "refusal": None},
                "finish_reason": "tool_calls",
                "of_tomorrow": NEW,
            }
        ],
        "usage": USAGE,
        "of_tomorrow": NEW,
    },
    "/v1/completions": {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1,
        "model": "upstream-model",
        "choices": [
            {"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "stop", "of_tomorrow": NEW}
        ],
        "usage": USAGE,
        "of_tomorrow": NEW,
    },
}
OWN = {"model", "stream", "stream_options"}


def exact(data: bytes | str) -> Any:
    """JSON with whole numbers apart from others, at any size; the order of names means nothing."""
    return json.loads(
        data, parse_int=lambda text: f"int {text}", parse_float=lambda text: f"float {float(text)!r}"
    )


@pytest.fixture
async def gateway(upstream: FakeUpstream, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with serving(tmp_path / "policies", a_policy(upstream.base_url)) as running:
        yield running


def answer_for(path: str) -> bytes:
    if path == "/v1/embeddings":
        told: dict[str, Any] = {"object": "list", "model": "m", "data": [], "usage": {"prompt_tokens": 2}}
        told["data"] = [{"object": "embedding", "index": i, "embedding": [0.5, 1.0]} for i in range(2)]
        return json.dumps(told).encode()
    return json.dumps(TOLD[path]).encode()


@pytest.mark.parametrize("path", ASKED)
async def test_the_server_gets_what_the_caller_wrote(
    upstream: FakeUpstream, gateway: Gateway, path: str
) -> None:
    upstream.scripts = [reply(answer_for(path))]
    written = json.dumps({"model": "up", **ASKED[path], "of_tomorrow": NEW, **NEW}, ensure_ascii=False)
    answer = await gateway.http.post(path, content=written.encode())
    assert answer.status_code == 200, answer.text
    got, asked = exact(upstream.requests[-1].body), exact(written)
    assert {name: got[name] for name in got if name not in OWN} == {
        name: asked[name] for name in asked if name not in OWN
    }
    assert got["model"] == "upstream-model"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text() | st.floats(-1e300, 1e300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(value=_JSON)
async def test_any_value_does(upstream: FakeUpstream, gateway: Gateway, value: Any) -> None:
    upstream.scripts = [reply(answer_for("/v1/chat/completions"))]
    body = {"model": "up", "messages": [{"role": "user", "content": "Hi", "new": value}], "new": value}
    answer = await gateway.http.post("/v1/chat/completions", content=json.dumps(body).encode())
    assert answer.status_code == 200, answer.text
    got = json.loads(upstream.requests[-1].body)
    assert repr(got["new"]) == repr(value) and repr(got["messages"][0]["new"]) == repr(value)


@pytest.mark.parametrize("path", TOLD)
async def test_the_caller_gets_what_the_server_said(
    upstream: FakeUpstream, gateway: Gateway, path: str
) -> None:
    upstream.scripts = [reply(answer_for(path))]
    answer = await gateway.http.post(path, json={"model": "up", **ASKED[path]})
    told = exact(answer_for(path))
    assert exact(answer.content) == {**told, "model": "up"}


@pytest.mark.parametrize("path", TOLD)
async def test_each_event_of_a_stream_is_the_servers(
    upstream: FakeUpstream, gateway: Gateway, path: str
) -> None:
    chat = path == "/v1/chat/completions"
    head = {
        "id": TOLD[path]["id"],
        "object": "chat.completion.chunk" if chat else "text_completion",
        "created": 1,
    }

    def event(choice: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
        choices = [] if choice is None else [{"index": 0, "logprobs": None, "finish_reason": None, **choice}]
        return {**head, "model": "upstream-model", "choices": choices, "usage": None, **more}

    def piece(text: str, **more: Any) -> dict[str, Any]:
        return {"delta": {"content": text, **more}} if chat else {"text": text, **more}

    sent = [
        event(piece("H", of_tomorrow=NEW)),
        event(piece("i")),
        event({**piece(""), "finish_reason": "stop", "of_tomorrow": NEW}, of_tomorrow=NEW),
        event(None, usage=USAGE),
    ]
    lines = [b"data: " + json.dumps(one).encode() + b"\n\n" for one in sent]
    upstream.scripts = [stream(*lines, b"data: [DONE]\n\n")]
    asked = {"model": "up", **ASKED[path], "stream": True, "stream_options": {"include_usage": True}}
    answer = await gateway.http.post(path, json=asked)
    got = [exact(one[6:]) for one in answer.content.split(b"\n\n")[:-1] if one.startswith(b"data: {")]
    expected = [{**exact(json.dumps(one)), "model": "up"} for one in sent]
    assert got == expected
