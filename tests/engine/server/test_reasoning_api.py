"""Reasoning over real sockets: a random model reasons for as long as it may, and a form plays its answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.engine.live import EngineServer
from tests.engine.server.test_tools import HARMONY_TEMPLATE
from tests.engine.server.test_tools_api import HELLO, TOOLS, check_call, write_tool_model
from tests.engine.tiny import write_model

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.reasoning_content %}[{{ message.reasoning_content }}]{% endif %}{{ message.content }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>\n{% endif %}"
    "{% endif %}"
)
PARIS = {"guided_choice": ["Paris"]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    folder = tmp_path_factory.mktemp("reasoning")
    model = write_tool_model(folder / "tiny", TEMPLATE, "<think>", "</think>", "<tool_call>", "</tool_call>")
    options = ("--kv-cache-blocks", "400", "--max-string-length", "40", "--speculation", "ngram")
    with EngineServer(model, *options, log=folder / "log") as server:
        yield server


@pytest.fixture(scope="module")
def sdk(server: EngineServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)


def ask(server: EngineServer, **body: Any) -> dict[str, Any]:
    answer = server.post(
        "/v1/chat/completions", **{"model": "tiny", "messages": HELLO, "max_tokens": 300, "seed": 3, **body}
    )
    assert answer.status_code == 200, answer.text
    return answer.json()


def reasoned(answer: dict[str, Any]) -> int:
    return answer["usage"]["completion_tokens_details"]["reasoning_tokens"]


@pytest.mark.parametrize(
    "asked",
    [
        {"max_reasoning_tokens": 12},
        {"thinking_token_budget": 12},
        {"thinking": {"type": "enabled", "budget_tokens": 12}},
        {"reasoning": {"max_tokens": 12}},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_a_budget_ends_reasoning_and_the_answer_goes_on(server: EngineServer, asked: dict[str, Any]) -> None:
    answer = ask(server, **asked, **PARIS)
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == "Paris"
    assert choice["message"]["reasoning_content"]
    assert reasoned(answer) == 12
    assert choice["finish_reason"] == "stop"


def test_max_tokens_may_end_within_reasoning(server: EngineServer) -> None:
    answer = ask(server, max_tokens=9)
    (choice,) = answer["choices"]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "")
    assert choice["message"]["reasoning_content"]
    assert reasoned(answer) == answer["usage"]["completion_tokens"] == 9


@pytest.mark.parametrize(
    "asked",
    [
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"thinking": {"type": "disabled"}},
        {"max_reasoning_tokens": 0},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_reasoning_is_switched_off_in_the_template(server: EngineServer, asked: dict[str, Any]) -> None:
    answer = ask(server, **asked, **PARIS)
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Paris", "refusal": None}


@pytest.mark.parametrize("marker", [320, 321])
def test_a_marker_after_reasoning_that_is_switched_off_is_left_out(server: EngineServer, marker: int) -> None:
    answer = ask(server, reasoning_effort="none", logit_bias={str(marker): 100}, max_tokens=4)
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["choices"][0]["message"]["content"] == ""


def test_a_stream_says_what_the_whole_does(server: EngineServer, sdk: openai.OpenAI) -> None:
    body = {"n": 2, "logprobs": True, "max_reasoning_tokens": 20, **PARIS}
    whole = ask(server, **body)
    stream = sdk.chat.completions.create(
        model="tiny",
        messages=HELLO,
        max_tokens=300,
        seed=3,
        n=2,
        logprobs=True,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"max_reasoning_tokens": 20, **PARIS},
    )
    texts = [{"reasoning_content": "", "content": ""} for _ in range(2)]
    tokens: list[list[str]] = [[], []]
    usage = None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            said = choice.delta.model_dump(exclude_none=True)
            for name in texts[choice.index]:
                texts[choice.index][name] += said.get(name, "")
            if choice.logprobs is not None:
                more = choice.logprobs.model_dump()
                tokens[choice.index] += [one["token"] for one in more["content"]]
    for choice, text, said in zip(whole["choices"], texts, tokens, strict=True):
        assert {name: choice["message"][name] for name in text} == text
        assert "".join(said) == "Paris" == "".join(one["token"] for one in choice["logprobs"]["content"])
        assert len(choice["logprobs"]["reasoning_content"]) >= 21  # with the tag, and white space
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == reasoned(whole) == 40


def test_stop_strings_end_the_answer_alone(server: EngineServer) -> None:
    thought = ask(server, max_reasoning_tokens=20, **PARIS)["choices"][0]["message"]["reasoning_content"]
    body = {"max_reasoning_tokens": 20, "stop": [thought[2:4], "ri"]}
    (choice,) = ask(server, **body, **PARIS)["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "Pa",
        "refusal": None,
        "reasoning_content": thought,
    }
    assert choice["stop_reason"] == "ri"


def test_calls_and_schemas_come_after_reasoning(server: EngineServer) -> None:
    (choice,) = ask(server, max_reasoning_tokens=8, tools=TOOLS, tool_choice="required")["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"]
    assert choice["message"]["tool_calls"]
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    (choice,) = ask(server, max_reasoning_tokens=8, response_format=form)["choices"]
    assert json.loads(choice["message"]["content"])["n"] in (1, 2)


def test_reasoning_may_be_left_out_and_is_counted(server: EngineServer) -> None:
    answer = ask(server, max_reasoning_tokens=8, include_reasoning=False, **PARIS)
    assert "reasoning_content" not in answer["choices"][0]["message"]
    assert reasoned(answer) == 8


@pytest.mark.parametrize(
    "asked",
    [
        {"max_reasoning_tokens": -1},
        {"thinking": {"budget_tokens": "many"}},
        {"reasoning": {"max_tokens": True}},
        {"reasoning_effort": 3},
        {"reasoning_effort": "a text of one's own"},
        {"reasoning": {"effort": "a text of one's own"}},
        {"chat_template_kwargs": {"messages": []}},
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(server: EngineServer, asked: dict[str, Any]) -> None:
    answer = server.post("/v1/chat/completions", model="tiny", messages=HELLO, **asked)
    assert answer.status_code == 400
    assert next(iter(asked)) in answer.json()["error"]["param"]


def test_a_model_that_does_not_reason_says_what_it_ignored(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("plain")
    with EngineServer(write_model(folder / "tiny"), log=folder / "log") as server:
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 4, "reasoning_effort": "low"}
        answer = server.post("/v1/chat/completions", **body, max_reasoning_tokens=3)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-tollgate-ignored"] == "max_reasoning_tokens, reasoning_effort"
    assert "completion_tokens_details" not in answer.json()["usage"]


ENDS = {"323": 100}
"""A bias towards <|end|>, where a message of reasoning may end."""
HARMONY_MARKS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|constrain|>")


@pytest.fixture(scope="module")
def channels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """As gpt-oss speaks."""
    folder = tmp_path_factory.mktemp("channels")
    model = write_tool_model(folder / "tiny", HARMONY_TEMPLATE, *HARMONY_MARKS)
    options = ("--kv-cache-blocks", "400", "--max-string-length", "40")
    with EngineServer(model, *options, log=folder / "log") as server:
        yield server


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_call_in_a_channel_comes_out_as_a_call(channels: EngineServer, choice: Any, stream: bool) -> None:
    """Forced: the model is random, and would reason for long."""
    sdk = openai.OpenAI(base_url=f"{channels.url}/v1", api_key="none", max_retries=0, timeout=300)
    asked: dict[str, Any] = {"model": "tiny", "messages": HELLO, "tools": TOOLS, "tool_choice": choice}
    (calls, *_) = channels.post("/tokenize", model="tiny", prompt="commentary").json()["tokens"]
    asked |= {"max_tokens": 400, "logit_bias": {**ENDS, str(calls): 100}}
    for seed in range(3):
        if not stream:
            (found,) = sdk.chat.completions.create(**asked, seed=seed).choices
            assert (found.finish_reason, found.message.content) == ("tool_calls", None)
            (call,) = found.message.tool_calls or ()
            check_call(call.function.name, call.function.arguments)
            continue
        name, arguments, finish = "", "", None
        for chunk in sdk.chat.completions.create(**asked, seed=seed, stream=True):
            (part,) = chunk.choices
            assert not part.delta.content
            finish = part.finish_reason or finish
            for more in part.delta.tool_calls or ():
                assert more.index == 0
                name += (more.function and more.function.name) or ""
                arguments += (more.function and more.function.arguments) or ""
        assert finish == "tool_calls"
        check_call(name, arguments)


def test_a_form_beside_tools_is_a_call_or_in_the_final_channel(channels: EngineServer) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["yes", "no"]}}}
    seen = set()
    for seed in range(8):
        answer = ask(channels, tools=TOOLS, response_format=form, logit_bias=ENDS, seed=seed)
        (choice,) = answer["choices"]
        for call in choice["message"].get("tool_calls") or ():
            check_call(call["function"]["name"], call["function"]["arguments"])
        if choice["finish_reason"] == "stop":
            assert choice["message"]["content"] in ('"yes"', '"no"')
        seen.add(choice["finish_reason"])
    assert "stop" in seen
