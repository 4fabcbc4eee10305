"""The API over real sockets, with a real engine process behind it."""

from __future__ import annotations

import json
import time
from typing import Any

import openai
import pytest

from tests.engine.live import EngineServer, eventually

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def sdk(server: EngineServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)


def events(text: str) -> list[Any]:
    """The data of each server-sent event; the last must be [DONE]."""
    parts = text.split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    data = [part.removeprefix("data: ") for part in parts]
    assert data.pop() == "[DONE]"
    return [json.loads(item) for item in data]


def test_a_chat_answer_has_openais_shape(server: EngineServer) -> None:
    answer = server.post(CHAT, model="long", messages=HELLO, max_tokens=5, temperature=0).json()
    assert answer.pop("id").startswith("chatcmpl-")
    assert abs(answer.pop("created") - time.time()) < 60
    (choice,) = answer.pop("choices")
    assert isinstance(choice["message"].pop("content"), str)
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "refusal": None},
        "logprobs": None,
        "finish_reason": "length",
        "stop_reason": None,
    }
    prompt = answer["usage"]["prompt_tokens"]
    assert prompt > 5
    assert answer == {
        "object": "chat.completion",
        "model": "long",
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": 5,
            "total_tokens": prompt + 5,
            "prompt_tokens_details": answer["usage"]["prompt_tokens_details"],
        },
    }


def test_a_chat_stream_has_openais_shape(server: EngineServer) -> None:
    body = {"model": "long", "messages": HELLO, "max_tokens": 12, "temperature": 0}
    server.post(CHAT, **body)  # From here on its first block is cached, whichever tests ran before.
    whole = server.post(CHAT, **body).json()
    answer = server.post(CHAT, **body, stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    chunks = events(answer.text)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0]["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": "", "refusal": None},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    *talk, last, usage = chunks
    end = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    assert last["choices"][0] == end
    assert all(chunk["usage"] is None for chunk in [*talk, last])
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in talk)
    assert text == whole["choices"][0]["message"]["content"]
    without = events(server.post(CHAT, **body, stream=True).text)
    assert not any("usage" in chunk for chunk in without)
    assert len(without[-1]["choices"]) == 1


def test_a_completion_stream_has_openais_shape(server: EngineServer) -> None:
    body = {"model": "long", "prompt": "the quick", "max_tokens": 9, "temperature": 0}
    whole = server.post(TEXT, **body).json()
    assert whole["id"].startswith("cmpl-")
    assert whole["object"] == "text_completion"
    chunks = events(server.post(TEXT, **body, stream=True).text)
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    choices = [chunk["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert [choice["finish_reason"] for choice in choices][-1] == "length"
    assert {choice["finish_reason"] for choice in choices[:-1]} <= {None}


def test_the_official_sdk_talks_to_it(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(
        model="long", messages=HELLO, max_completion_tokens=6, temperature=0.7, seed=3, n=2, user="u"
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    stream = sdk.chat.completions.create(
        model="long",
        messages=HELLO,
        max_tokens=6,
        temperature=0.7,
        seed=3,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    texts = {0: "", 1: ""}
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {choice.index: choice.message.content for choice in answer.choices}
    assert texts[0] != texts[1]
    # Not the cached tokens: the second request may find what the first has left.
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (answer.usage.prompt_tokens, 12)
    completion = sdk.completions.create(model="long", prompt=["ab", "cd"], max_tokens=3, temperature=0)
    assert len(completion.choices) == 2
    assert [model.id for model in sdk.models.list()] == ["long"]
    assert sdk.models.retrieve("long").id == "long"


def test_the_official_sdk_raises_its_own_errors(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.chat.completions.create(model="gpt-9", messages=HELLO)
    assert missing.value.code == "model_not_found"
    assert missing.value.param == "model"
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.chat.completions.create(model="long", messages=HELLO, extra_body={"audio": {}})
    assert (bad.value.code, bad.value.param) == ("unsupported_parameter", "audio")


def test_prompts_in_all_forms_give_the_same_answers(server: EngineServer) -> None:
    def ask(prompt: Any, **more: Any) -> list[str]:
        answer = server.post(TEXT, model="long", prompt=prompt, max_tokens=8, temperature=0, **more)
        choices = answer.json()["choices"]
        assert [choice["index"] for choice in choices] == list(range(len(choices)))
        return [choice["text"] for choice in choices]

    (alone,) = ask("zz")
    from tests.engine.tiny import make_tokenizer

    ids = make_tokenizer().encode("zz").ids
    assert ask(ids) == [alone]
    assert ask(["zz", "yy"])[0] == alone
    assert ask([ids, ids]) == [alone, alone]
    assert ask(["zz", "yy"], n=2)[:2] == [alone, alone]
    assert ask("zz", echo=True) == ["zz" + alone]
    assert ask(ids, echo=True) == ["zz" + alone]


def test_an_echo_streams_first(server: EngineServer) -> None:
    body = {"model": "long", "prompt": "zz", "max_tokens": 4, "temperature": 0, "echo": True}
    chunks = events(server.post(TEXT, **body, stream=True).text)
    assert chunks[0]["choices"][0]["text"].startswith("zz")


def test_completions_default_to_16_tokens(server: EngineServer) -> None:
    answer = server.post(TEXT, model="long", prompt="zz", temperature=0).json()
    assert answer["usage"]["completion_tokens"] == 16


def test_a_seed_repeats_itself_and_no_seed_does_not(server: EngineServer) -> None:
    def ask(**more: Any) -> str:
        body = {"model": "long", "prompt": "zz", "max_tokens": 16, "temperature": 1.0, **more}
        return server.post(TEXT, **body).json()["choices"][0]["text"]

    assert ask(seed=5) == ask(seed=5) != ask(seed=6)
    assert ask() != ask()
    assert ask(seed=5, top_k=1) == ask(seed=6, top_k=1) == ask(temperature=0)


def test_a_stop_string_ends_the_answer_before_itself(server: EngineServer) -> None:
    body = {"model": "long", "prompt": "the", "max_tokens": 60, "temperature": 0}
    whole = server.post(TEXT, **body).json()
    text = whole["choices"][0]["text"]
    place = next(i for i in range(8, len(text) - 3) if "\ufffd" not in text[i : i + 3])
    stop = text[place : place + 3]
    expected = text[: text.find(stop)]
    for stops in (stop, ["never-there", stop]):
        answer = server.post(TEXT, **body, stop=stops).json()
        assert answer["choices"][0]["text"] == expected
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] < 60
    chunks = events(server.post(TEXT, **body, stop=stop, stream=True).text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    # The engine has let go of it as well.
    eventually(lambda: server.state()["running"] == 0)


def test_the_default_for_chat_is_the_rest_of_the_context(server: EngineServer) -> None:
    with server.http.stream(
        "POST", CHAT, json={"model": "long", "messages": HELLO, "stream": True}
    ) as answer:
        chunks = 0
        for line in answer.iter_lines():
            chunks += line.startswith("data: ")
            if chunks > 40:
                break
    eventually(lambda: server.state()["running"] == 0)


def test_tools_go_to_the_template(server: EngineServer) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for choice in ("auto", "none"):
        answer = server.post(
            CHAT, model="long", messages=HELLO, max_tokens=2, tools=[tool], tool_choice=choice
        )
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"{", 400, "invalid_value", None),
        (b"", 400, "invalid_value", None),
        (b'{"model": "long", "messages": []}', 400, "invalid_value", "messages"),
        (
            b'{"model": "gpt-9", "messages": [{"role": "user", "content": "x"}]}',
            404,
            "model_not_found",
            "model",
        ),
        (
            b'{"model": "long", "messages": [{"role": "tool", "content": "x"}]}',
            400,
            "invalid_value",
            "messages",
        ),
        (
            b'{"model": "long", "messages": [{"role": "user", "content": "x"}], "audio": {}}',
            400,
            "unsupported_parameter",
            "audio",
        ),
        (
            b'{"model": "long", "messages": [{"role": "user", "content": "%s"}]}' % (b"z" * 40_000),
            400,
            "context_length_exceeded",
            "messages",
        ),
        (b'{"model": "long", "messages": [], "x": "%s"}' % (b"z" * 300_000), 413, "request_too_large", None),
    ],
    ids=["half", "empty", "no-messages", "model", "template", "audio", "prompt", "body"],
)
def test_a_bad_request_is_told_so_and_the_connection_lives_on(
    server: EngineServer, body: bytes, status: int, code: str, param: str | None
) -> None:
    server.http.get("/v1/models")
    answer = server.http.post(CHAT, content=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")
    assert server.http.get("/v1/models").status_code == 200


SHORT = {"x-tollgate-priority": "-1000"}
"""The server's fixture has a context of 64 tokens for these."""


def test_a_prompt_too_long_is_told_the_numbers_in_openais_words(server: EngineServer) -> None:
    body = {"model": "long", "prompt": [7] * 64}
    error = server.http.post(TEXT, json=body, headers=SHORT).json()["error"]
    assert error["message"].startswith(
        "This model's maximum context length is 64 tokens. However, your prompt resulted in 64 tokens"
    )
    error = server.http.post(TEXT, json={**body, "max_tokens": 5}, headers=SHORT).json()["error"]
    assert "However, you requested 69 tokens (64 in the prompt, 5 in the completion)" in error["message"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")


def test_max_tokens_is_clipped_to_what_the_prompt_leaves(server: EngineServer) -> None:
    body = {"model": "long", "prompt": [7] * 54, "ignore_eos": True}
    for asked in (11, 32_000):
        answer = server.http.post(TEXT, json={**body, "max_tokens": asked, "min_tokens": 11}, headers=SHORT)
        assert answer.headers["x-tollgate-max-tokens"] == "10"
        assert answer.json()["usage"]["completion_tokens"] == 10
        assert answer.json()["choices"][0]["finish_reason"] == "length"
    exact = server.http.post(TEXT, json={**body, "max_tokens": 10}, headers=SHORT)
    assert exact.status_code == 200
    assert "x-tollgate-max-tokens" not in exact.headers
    # With several prompts the header has the least, and each gets what there is for it.
    several = {**body, "prompt": [[7] * 54, [7, 8]], "max_tokens": 12}
    both = server.http.post(TEXT, json=several, headers=SHORT)
    assert both.headers["x-tollgate-max-tokens"] == "10"
    assert both.json()["usage"]["completion_tokens"] == 10 + 12


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_chat_is_clipped_too_and_streams_tell_it(server: EngineServer, field: str) -> None:
    body = {"model": "long", "messages": HELLO, field: 32_000, "logit_bias": {"9": 100}}
    for more in ({}, {"stream": True}):
        answer = server.post(CHAT, **body, stop_token_ids=[9], **more)
        assert answer.status_code == 200
        assert 29_000 < int(answer.headers["x-tollgate-max-tokens"]) < 30_000


def test_a_gateway_may_ask_for_a_refusal_in_place_of_fewer_tokens(server: EngineServer) -> None:
    body = {"model": "long", "messages": HELLO, "max_tokens": 30_000}
    refused = server.http.post(CHAT, json=body, headers={"x-tollgate-over-context": "refuse"})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
    assert "30000 in the completion" in error["message"]


HARMLESS = {
    "service_tier": "flex",
    "prompt_cache_key": "k",
    "prompt_cache_retention": "24h",
    "reasoning_effort": "high",
    "verbosity": "low",
    "safety_identifier": "s",
    "store": True,
    "metadata": {"a": "b"},
    "modalities": ["text"],
    "prediction": {"type": "content", "content": "x"},
    "user": "u",
    "thinking": {"type": "enabled"},
    "frobnicate": {"a": [1]},
}


@pytest.mark.parametrize("stream", [False, True])
def test_what_changes_no_answer_is_ignored_and_named_in_a_header(server: EngineServer, stream: bool) -> None:
    body = {"model": "long", "messages": HELLO, "max_tokens": 3, "temperature": 0, "stream": stream}
    plain = server.post(CHAT, **body)
    answer = server.post(CHAT, **body, **HARMLESS)
    assert answer.status_code == 200
    assert "x-tollgate-ignored" not in plain.headers
    assert answer.headers["x-tollgate-ignored"] == ", ".join(sorted(HARMLESS))
    if not stream:
        assert answer.json()["choices"] == plain.json()["choices"]


def test_what_ended_an_answer_is_reported(server: EngineServer) -> None:
    body = {"model": "long", "prompt": "once", "max_tokens": 30, "temperature": 0}
    text = server.post(TEXT, **body).json()["choices"][0]["text"]
    stop = text[len(text) // 2 :][:2]
    for more in ({}, {"stream": True}):
        answer = server.post(TEXT, **body, stop=["never", stop], **more)
        found = (events(answer.text) if more else [answer.json()])[-1]["choices"][0]
        assert (found["finish_reason"], found["stop_reason"]) == ("stop", stop)
    whole = server.post(TEXT, **body, logprobs=0, seed=1).json()["choices"][0]
    assert (whole["finish_reason"], whole["stop_reason"]) == ("length", None)


def test_a_token_that_ended_an_answer_is_reported(server: EngineServer) -> None:
    body = {"model": "long", "messages": HELLO, "max_tokens": 30, "temperature": 0}
    biased = {"logit_bias": {"9": 100}, "stop_token_ids": [9]}
    whole = server.post(CHAT, **body, **biased).json()["choices"][0]
    assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", 9)
    last = events(server.post(CHAT, **body, **biased, stream=True).text)[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", 9)
    assert last["delta"] == {}


def test_token_ids_out_of_range_are_refused(server: EngineServer) -> None:
    for prompt in ([320], [-1]):
        answer = server.post(TEXT, model="long", prompt=prompt)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "prompt"
    assert server.post(TEXT, model="long", prompt="").status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not_found"),
        ("POST", "/v1/chat/completions/", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/models/gpt-9", 404, "model_not_found"),
    ],
)
def test_paths_and_methods_that_are_not_there_get_openais_error(
    server: EngineServer, method: str, path: str, status: int, code: str
) -> None:
    answer = server.http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    if status == 405:
        assert answer.headers["allow"]


def test_health_decodes_a_token_and_is_cheap_to_ask(server: EngineServer) -> None:
    def steps() -> float:
        text = server.http.get("/metrics").text
        (line,) = [x for x in text.splitlines() if x.startswith("tollgate_engine_step_batch_size_count")]
        return float(line.split()[1])

    time.sleep(1.05)
    before = steps()
    for _ in range(20):
        assert server.http.get("/health").json() == {"status": "ok"}
    assert steps() == before + 1


def test_metrics_and_state_agree_with_what_was_asked(server: EngineServer) -> None:
    def value(name: str) -> float:
        lines = server.http.get("/metrics").text.splitlines()
        # A counter with labels has no line before its first event.
        return next(
            (float(x.split()[-1]) for x in lines if x.rpartition(" ")[0] == f"tollgate_engine_{name}"), 0.0
        )

    names = [
        "prompt_tokens_total",
        "generated_tokens_total",
        'requests_total{path="/v1/completions",status="200"}',
        "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_count",
        "queue_seconds_count",
    ]
    before = {name: value(name) for name in names}
    server.post(TEXT, model="long", prompt=[5] * 40, max_tokens=10, temperature=0)
    gained: list[float] = []
    for _ in range(200):  # A request is counted once its last byte is sent, which its caller may see first.
        gained = [value(name) - before[name] for name in names]
        if gained[2]:
            break
        time.sleep(0.02)
    assert gained == [40, 10, 1, 1, 9, 1]
    state = server.state()
    assert state["running"] == state["waiting"] == state["queue_depth"] == 0
    cache = state["kv_cache"]
    assert cache["blocks_free"] + cache["blocks_cached"] == cache["blocks_total"] == 2000
    assert state["prefill_tokens_per_second"] > 0
    assert state["decode_tokens_per_second"] > 0
