"""Logprobs in OpenAI's shape over real sockets, whole and streamed."""

from __future__ import annotations

import json
import math
from typing import Any

import openai
import pytest

from tests.engine.live import EngineServer

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


def chat(server: EngineServer, **more: Any) -> dict[str, Any]:
    body = {"model": "long", "messages": HELLO, "max_tokens": 40, "temperature": 0, **more}
    return server.post(CHAT, **body).json()["choices"][0]


def text(server: EngineServer, **more: Any) -> dict[str, Any]:
    body = {"model": "long", "prompt": "hello", "max_tokens": 40, "temperature": 0, **more}
    return server.post(TEXT, **body).json()["choices"][0]


def stream(server: EngineServer, path: str, **body: Any) -> list[dict[str, Any]]:
    lines = server.post(path, model="long", stream=True, **body).text.split("\n")
    return [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]


def test_each_token_has_its_bytes_and_the_likeliest_ones(server: EngineServer) -> None:
    plain = chat(server)
    choice = chat(server, logprobs=True, top_logprobs=3)
    assert choice["message"] == plain["message"]
    assert plain["logprobs"] is None
    assert choice["logprobs"]["refusal"] is None
    content = choice["logprobs"]["content"]
    assert len(content) == 40
    for token in content:
        assert set(token) == {"token", "logprob", "bytes", "top_logprobs"}
        assert len(token["top_logprobs"]) == 3
        # Greedy: what was said is the likeliest.
        assert token["top_logprobs"][0] == {name: token[name] for name in ("token", "logprob", "bytes")}
        values = [other["logprob"] for other in token["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        assert sum(math.exp(value) for value in values) <= 1 + 1e-4
    received = bytes(byte for token in content for byte in token["bytes"])
    assert received.decode(errors="replace") == choice["message"]["content"]
    assert [token["top_logprobs"] for token in chat(server, logprobs=True)["logprobs"]["content"]] == [
        []
    ] * 40
    assert chat(server, logprobs=False, top_logprobs=0)["logprobs"] is None


def test_temperature_changes_what_is_said_and_not_what_is_thought(server: EngineServer) -> None:
    cold = chat(server, logprobs=True, top_logprobs=5, max_tokens=1)["logprobs"]["content"][0]
    hot = chat(server, logprobs=True, top_logprobs=5, max_tokens=1, temperature=2.0, seed=3, top_k=4)
    found = hot["logprobs"]["content"][0]["top_logprobs"]
    assert [t["token"] for t in found] == [t["token"] for t in cold["top_logprobs"]]
    assert [t["logprob"] for t in found] == pytest.approx(
        [t["logprob"] for t in cold["top_logprobs"]], abs=1e-4
    )


@pytest.mark.parametrize("stop", [None, "cut"])
def test_a_stream_tells_them_with_their_text(server: EngineServer, stop: str | None) -> None:
    body: dict[str, Any] = {
        "messages": HELLO,
        "max_tokens": 40,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 2,
    }
    if stop is not None:
        whole = chat(server)["message"]["content"]
        body["stop"] = next(whole[i : i + 3] for i in range(12, 60) if "\ufffd" not in whole[i : i + 3])
    whole = chat(server, **body)
    choices = stream(server, CHAT, **body)
    content = [token for c in choices if c["logprobs"] for token in c["logprobs"]["content"]]
    assert content == whole["logprobs"]["content"]
    assert choices[0]["logprobs"] is None
    assert choices[-1]["logprobs"] is None
    assert "".join(c["delta"].get("content", "") for c in choices) == whole["message"]["content"]
    received = bytes(byte for token in content for byte in token["bytes"] or []).decode(errors="replace")
    assert received.startswith(whole["message"]["content"])


def test_completions_have_the_older_shape(server: EngineServer) -> None:
    choice = text(server, logprobs=2)
    reported = choice["logprobs"]
    assert set(reported) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert [len(reported[name]) for name in reported] == [40] * 4
    assert text(server)["logprobs"] is None
    assert text(server)["text"] == choice["text"]
    for token, logprob, top, offset in zip(*reported.values(), strict=True):
        assert top[token] == logprob == max(top.values())
        assert 1 <= len(top) <= 3
        if not token.startswith("bytes:"):
            assert choice["text"][offset:].startswith(token)
    only = text(server, logprobs=0)["logprobs"]
    assert [list(top) for top in only["top_logprobs"]] == [[token] for token in reported["tokens"]]
    choices = stream(server, TEXT, prompt="hello", max_tokens=40, temperature=0, logprobs=2)
    joined: dict[str, list[Any]] = {}
    for c in choices:
        for name, values in (c["logprobs"] or {}).items():
            joined.setdefault(name, []).extend(values)
    assert joined == reported


def test_several_choices_each_have_their_own(server: EngineServer) -> None:
    body = {"model": "long", "messages": HELLO, "max_tokens": 8, "seed": 2, "n": 3, "logprobs": True}
    for choice in server.post(CHAT, **body).json()["choices"]:
        received = bytes(b for token in choice["logprobs"]["content"] for b in token["bytes"] or [])
        assert received.decode(errors="replace") == choice["message"]["content"]


def test_the_official_sdk_reads_them(server: EngineServer) -> None:
    sdk = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)
    answer = sdk.chat.completions.create(
        model="long", messages=HELLO, max_tokens=4, logprobs=True, top_logprobs=20
    )
    reported = answer.choices[0].logprobs
    assert reported is not None
    assert reported.content is not None
    assert [len(token.top_logprobs) for token in reported.content] == [20] * 4
    older = sdk.completions.create(model="long", prompt="a", max_tokens=4, logprobs=5).choices[0].logprobs
    assert older is not None
    assert len(older.tokens or []) == 4
