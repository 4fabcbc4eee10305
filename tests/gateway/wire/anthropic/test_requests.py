"""Anthropic's requests, read and written: translated whole, or refused with the name of the field at fault."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.types import ChatRequest
from gateway.wire.anthropic import body_to_request
from gateway.wire.anthropic.request_to_body import write_request
from gateway.wire.gemini import request_to_body as gemini
from gateway.wire.openai import chat as openai_chat
from tests.examples import examples

RECORDED = Path(__file__).parents[3] / "recorded" / "anthropic"
ASKED = {"model": "m", "max_tokens": 100, "messages": [{"role": "user", "content": "Hi"}]}
USER = {"role": "user", "content": "Hi"}


def write(*messages: dict[str, Any], continues: bool = False, n: int = 1, **params: Any) -> dict[str, Any]:
    """What is sent for these messages, without the fields that are always the same."""
    request = ChatRequest("m", messages=messages or (USER,), n=n, continues=continues, params=params)
    sent = write_request(request, "claude", max_tokens=4096)
    orjson.dumps(sent)
    assert sent.pop("model") == "claude"
    return sent


def read(**more: Any) -> ChatRequest:
    return body_to_request.read_request(orjson.dumps({**ASKED, **more}))


def turns(*messages: dict[str, Any]) -> Any:
    return write(*messages)["messages"]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def call(id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}


# Written


def test_words_and_defaults() -> None:
    assert write({"role": "system", "content": "Be brief."}, USER) == {
        "max_tokens": 4096,
        "system": [text("Be brief.")],
        "messages": [{"role": "user", "content": [text("Hi")]}],
    }


def test_parameters() -> None:
    sent = write(
        max_completion_tokens=7,
        max_tokens=9,
        temperature=1.7,
        top_p=0.9,
        top_k=40,
        stop="END",
        user="u-1",
        seed=7,
        store=True,
        verbosity="low",
        min_p=0.1,
        service_tier="flex",
        prediction={"type": "content", "content": "x"},
        frobnicate=1,
        logprobs=False,
        presence_penalty=0.0,
        logit_bias={},
        response_format={"type": "text"},
        frequency_penalty=None,
    )
    del sent["messages"]
    assert sent == {
        "max_tokens": 7,
        "temperature": 1,
        "top_p": 0.9,
        "top_k": 40,
        "stop_sequences": ["END"],
        "metadata": {"user_id": "u-1"},
    }


def test_a_file_of_text_is_sent_as_text() -> None:
    def source(data: str) -> Any:
        part = {"type": "file", "file": {"filename": "a", "file_data": data}}
        return write({"role": "user", "content": [part]})["messages"][0]["content"][0]["source"]

    text = {"type": "text", "media_type": "text/plain", "data": "hé"}
    assert source("data:text/plain;base64,aMOp") == text
    assert source("data:text/markdown;charset=utf-8;base64,aMOp") == text
    assert source("data:application/pdf;base64,aMOp") == {
        "type": "base64",
        "media_type": "application/pdf",
        "data": "aMOp",
    }


def test_a_choice_of_tools_yet_to_be_invented_is_for_its_provider() -> None:
    request = read(tools=[{"name": "f", "input_schema": {}}], tool_choice={"type": "tomorrow"})
    assert "tool_choice" not in request.params
    assert request.native is not None
    assert request.native.beyond == ("tool_choice", "a choice of type 'tomorrow'")


def test_thoughts_leave_room_for_an_answer() -> None:
    def sent(budget: int, **cap: int) -> tuple[int, Any]:
        written = write(thinking={"type": "enabled", "budget_tokens": budget}, **cap)
        return written["max_tokens"], written["thinking"]

    thinking = {"type": "enabled", "budget_tokens": 10_000}
    assert sent(10_000, max_tokens=16_000) == (16_000, thinking)
    assert sent(10_000) == (10_000 + 4096, thinking)
    assert sent(10_000, max_tokens=3000) == (3000, {**thinking, "budget_tokens": 1500})
    assert sent(10_000, max_tokens=1500) == (1500, {**thinking, "budget_tokens": 1024})
    assert sent(10_000, max_tokens=1024) == (1024, {"type": "disabled"})


@pytest.mark.parametrize(("cap", "budget"), [(9000, 5000), (4000, 2000), (1024, None)])
def test_thoughts_leave_room_where_a_caller_of_this_dialect_gets_fewer_tokens(
    cap: int, budget: int | None
) -> None:
    request = read(
        max_tokens=10_000, thinking={"type": "enabled", "budget_tokens": 5000, "display": "omitted"}
    )
    clipped = replace(request, params={**request.params, "max_completion_tokens": cap})
    sent = write_request(clipped, "claude-x", max_tokens=1)
    fewer = {"type": "enabled", "budget_tokens": budget, "display": "omitted"}
    assert sent["thinking"] == (fewer if budget else {"type": "disabled"})


def test_a_schema_and_an_effort() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    sent = write(
        reasoning_effort="minimal",
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    closed = {**schema, "additionalProperties": False}
    assert sent["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": closed}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logprobs", True),
        ("top_logprobs", 3),
        ("logit_bias", {"50256": -100}),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("response_format", {"type": "grammar"}),
        ("reasoning_effort", 5),
        ("modalities", ["text", "audio"]),
        ("functions", []),
        ("stop_token_ids", [5]),
        ("guided_json", {}),
        ("web_search_options", {}),
    ],
)
def test_what_the_provider_cannot_do_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(BadRequest, match=f"does not support '{name}'") as refusal:
        write(**{name: value})
    assert refusal.value.param == name


def test_several_choices_and_raw_prompts_are_refused() -> None:
    with pytest.raises(BadRequest) as refusal:
        write(n=2)
    assert refusal.value.param == "n"
    with pytest.raises(BadRequest, match="no raw completions") as refusal:
        write_request(ChatRequest("m", prompt="Once"), "claude", max_tokens=5)
    assert refusal.value.param == "prompt"


def test_turns_of_one_role_become_one() -> None:
    assert turns(
        USER,
        {"role": "developer", "content": "ProcessPool."},
        {"role": "user", "content": [text("there"), text("")]},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Bye"},
    ) == [
        {"role": "user", "content": [text("Hi"), text("there")]},
        {"role": "assistant", "content": [text("Yes?")]},
        {"role": "user", "content": [text("Bye")]},
    ]


def test_pictures_and_documents() -> None:
    [turn] = turns(
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk=", "detail": "low"}},
                {"type": "image_url", "image_url": {"url": "https://example.com/a.jpg"}},
                {
                    "type": "file",
                    "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="},
                },
            ],
        }
    )
    assert turn["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.jpg"}},
        {
            "type": "document",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="},
            "title": "a.pdf",
        },
    ]


def test_a_document_by_its_address_goes_to_those_who_fetch_it() -> None:
    source = {"type": "url", "url": "https://example.com/a.pdf"}
    block = {"type": "document", "source": source, "title": "Report"}
    request = read(messages=[{"role": "user", "content": [block]}])
    [message] = request.messages or ()
    assert message["content"] == [
        {"type": "file", "file": {"filename": "Report", "file_data": "https://example.com/a.pdf"}}
    ]
    assert write(message)["messages"][0]["content"] == [block]
    body = gemini.write_request(request, "gemini-3-pro")
    file = {"mimeType": "application/pdf", "fileUri": "https://example.com/a.pdf"}
    assert body["contents"][0]["parts"] == [{"fileData": file}]


def test_tool_calls_and_their_results() -> None:
    assert turns(
        USER,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call("call_1", '{"x": 1}'), call("functions.b:0", "")],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "one"},
        {"role": "tool", "tool_call_id": "functions.b:0", "content": ""},
        {"role": "user", "content": "Well?"},
    )[1:] == [
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}},
                {"type": "tool_use", "id": "toolu_as_functions_b_0", "name": "f", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("one")]},
                {"type": "tool_result", "tool_use_id": "toolu_as_functions_b_0"},
                text("Well?"),
            ],
        },
    ]


def test_tools() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    described = {"name": "f", "description": "F", "parameters": schema, "strict": True}
    assert write(
        tools=[
            {"type": "function", "function": described},
            {"type": "function", "function": {"name": "g"}},
        ]
    )["tools"] == [
        {"name": "f", "description": "F", "input_schema": schema, "strict": True},
        {"name": "g", "input_schema": {"type": "object", "properties": {}}},
    ]


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, None),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        (
            {
                "tool_choice": {"type": "function", "function": {"name": "f"}},
                "parallel_tool_calls": False,
            },
            {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        ),
    ],
)
def test_tool_choice(asked: dict[str, Any], sent: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert write(tools=tools, **asked).get("tool_choice") == sent
    assert "tool_choice" not in write(**asked)


def test_a_partial_answer_is_the_last_turn_and_ends_in_no_white_space() -> None:
    partial = {"role": "assistant", "content": "It is \n "}
    assert write(USER, partial, continues=True)["messages"][-1] == {
        "role": "assistant",
        "content": [text("It is")],
    }
    assert write(USER, {"role": "assistant", "content": " \n"}, continues=True)["messages"] == turns(USER)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "function", "name": "f", "content": "1"}, "messages[1].role"),
        ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[1].content[0].type"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0]"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///x"}}]},
            "messages[1].content[0].image_url.url",
        ),
        ({"role": "tool", "content": "1"}, "messages[1].tool_call_id"),
        (
            {"role": "assistant", "tool_calls": [call("a", "[1")]},
            "messages[1].tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "messages[1].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": 5}, "messages[1].tool_calls"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "messages[1].function_call"),
    ],
)
def test_content_without_a_place_is_refused(message: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        write(USER, message)
    assert refusal.value.param == param
    assert param in refusal.value.message


def test_a_conversation_of_nothing_but_instructions_is_refused() -> None:
    with pytest.raises(BadRequest) as refusal:
        write({"role": "system", "content": "Be brief."})
    assert refusal.value.param == "messages"


json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab ", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "function", "name", "url", "id", "input", "source"]), inner
        )
    ),
    max_leaves=8,
)


@settings(max_examples=examples(300))
@given(
    st.dictionaries(st.sampled_from([*openai_chat.ChatBody.model_fields, "top_k", "new"]), json, max_size=3)
)
def test_whatever_openais_dialect_lets_through_is_written_or_refused(fields: dict[str, Any]) -> None:
    try:
        request = openai_chat.read_request(orjson.dumps({"model": "m", "messages": [USER], **fields}))
        orjson.dumps(write_request(request, "claude", max_tokens=5))
    except BadRequest as error:
        assert error.param is not None


@settings(max_examples=examples(300))
@given(
    st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"])}).flatmap(
            lambda head: st.dictionaries(
                st.sampled_from(["content", "tool_calls", "tool_call_id"]), json
            ).map(lambda rest: {**head, **rest})
        ),
        min_size=1,
        max_size=3,
    )
)
def test_whatever_messages_there_are_they_are_written_or_refused(messages: list[dict[str, Any]]) -> None:
    try:
        request = openai_chat.read_request(orjson.dumps({"model": "m", "messages": messages}))
        orjson.dumps(write_request(request, "claude", max_tokens=5))
    except BadRequest as error:
        assert error.param is not None


# Read


def test_a_recorded_request() -> None:
    request = body_to_request.read_request((RECORDED / "request.json").read_bytes())
    assert request == ChatRequest(
        model="m",
        stream=True,
        messages=(
            {"role": "system", "content": "You are brief.\n\nYou know the weather."},
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
                    {"type": "image_url", "image_url": {"url": "https://example.com/sky.jpg"}},
                    {"type": "text", "text": "Is it like this in Paris and in Rome?"},
                ],
            },
            {
                "role": "assistant",
                "content": "I'll look up both.",
                "tool_calls": [
                    {
                        "id": f"call_{i}",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": f'{{"location":"{city}"}}'},
                    }
                    for i, city in ((1, "Paris"), (2, "Rome"))
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "15 degrees"},
            {"role": "tool", "tool_call_id": "call_2", "content": "Error: no such city"},
            {"role": "user", "content": "Well?"},
        ),
        params={
            "max_completion_tokens": 1024,
            "temperature": 0.5,
            "top_k": 40,
            "stop": ["END"],
            "user": "u-1",
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "get_weather",
                        "description": "The weather at a place now",
                        "parameters": {
                            "type": "object",
                            "properties": {"location": {"type": "string"}},
                            "required": ["location"],
                        },
                    },
                }
            ],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
        },
    )


def test_a_recorded_request_there_and_back() -> None:
    raw = orjson.loads((RECORDED / "request.json").read_bytes())
    request = body_to_request.read_request(orjson.dumps(raw))
    assert write_request(request, "claude-x", max_tokens=1) == {**raw, "model": "claude-x"}


def test_a_recorded_request_by_way_of_openais_shape() -> None:
    raw = orjson.loads((RECORDED / "request.json").read_bytes())
    request = replace(body_to_request.read_request(orjson.dumps(raw)), native=None)
    sent = write_request(request, "m", max_tokens=1)
    assert sent["system"] == [text("You are brief.\n\nYou know the weather.")]
    raw["messages"][1]["content"].pop(0)  # the thoughts
    raw["messages"][2]["content"][1] = {
        "type": "tool_result",
        "tool_use_id": "toolu_2",
        "content": [text("Error: no such city")],
    }
    del raw["tools"][0]["cache_control"], raw["thinking"], raw["system"], sent["system"]
    assert sent == raw


def test_a_clipped_answer_leaves_its_thoughts_no_more_than_half() -> None:
    body = {
        "model": "m",
        "max_tokens": 30000,
        "messages": [USER],
        "thinking": {"type": "enabled", "budget_tokens": 20000},
    }
    request = body_to_request.read_request(orjson.dumps(body))
    clipped = replace(request, params={**request.params, "max_completion_tokens": 6000})
    sent = write_request(clipped, "m", max_tokens=1)
    assert (sent["max_tokens"], sent["thinking"]) == (6000, {"type": "enabled", "budget_tokens": 3000})
    roomy = replace(request, params={**request.params, "max_completion_tokens": 25000})
    assert write_request(roomy, "m", max_tokens=1)["thinking"] == body["thinking"]


VIDEO = {"type": "video", "source": {"type": "base64", "data": "aGk="}}


@pytest.mark.parametrize(
    ("fields", "param", "what"),
    [
        ({"messages": [{"role": "user", "content": [VIDEO]}]}, "messages[0].content[0]", "of type 'video'"),
        (
            {
                "messages": [
                    USER,
                    {
                        "role": "assistant",
                        "content": [
                            {
                                "type": "web_search_tool_result",
                                "tool_use_id": "srvtoolu_1",
                                "content": {
                                    "type": "web_search_tool_result_error",
                                    "error_code": "unavailable",
                                },
                            }
                        ],
                    },
                    USER,
                ]
            },
            "messages[1].content[0]",
            "of type 'web_search_tool_result'",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image", "source": {"type": "file", "file_id": "file_1"}}],
                    }
                ]
            },
            "messages[0].content[0]",
            "an image by file",
        ),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]", "of type 'bash_20250124'"),
        ({"mcp_servers": [{"type": "url", "name": "a", "url": "https://a"}]}, "mcp_servers", "provider"),
        ({"container": "container_1"}, "container", "provider"),
        ({"output_config": {"format": {"type": "yaml"}}}, "output_config.format", "format"),
    ],
)
def test_what_only_the_provider_knows_is_for_it_and_refused_elsewhere(
    fields: dict[str, Any], param: str, what: str
) -> None:
    request = read(**fields)
    body = {**ASKED, **fields}
    assert write_request(request, "x", max_tokens=1) == {**body, "model": "x"}
    with pytest.raises(BadRequest, match=what) as refusal:
        openai_chat.write_request(request, "x")
    assert (refusal.value.param, refusal.value.code) == (param, "unsupported_parameter")


def test_a_last_turn_of_the_assistants_is_a_partial_answer() -> None:
    begun = {"role": "assistant", "content": "The answer is ("}
    request = read(messages=[USER, begun])
    assert request.continues
    assert request.messages == (USER, begun)
    assert not read().continues


def test_pictures_in_a_tools_result_follow_it() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [picture]}
    assert read(messages=[{"role": "user", "content": [result]}]).messages == (
        {"role": "tool", "tool_call_id": "a", "content": "The result follows."},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}],
        },
    )


@pytest.mark.parametrize(
    ("choice", "params"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            {"type": "tool", "name": "f"},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
    ],
)
def test_tool_choice_as_read(choice: dict[str, Any], params: dict[str, Any]) -> None:
    request = read(tools=[{"name": "f", "input_schema": {"type": "object"}}], tool_choice=choice)
    assert {name: request.params[name] for name in params} == params


def test_a_schema_as_read() -> None:
    schema = {"type": "object"}
    request = read(output_config={"format": {"type": "json_schema", "schema": schema}, "effort": "max"})
    assert request.params["response_format"]["json_schema"]["schema"] == schema
    assert "reasoning_effort" not in request.params


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file"}}]}]},
            "messages[0].content[0].source",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[0].content[0].tool_use_id",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a"}]}]},
            "messages[0].content[0]",
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}],
                    }
                ]
            },
            "messages",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"temperature": 1.5}, "temperature"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ],
)
def test_a_bad_request_is_refused_by_the_name_of_its_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        read(**fields)
    assert refusal.value.param == param
    assert param in refusal.value.message


def test_a_cap_is_demanded_but_not_for_a_count() -> None:
    body = orjson.dumps({"model": "m", "messages": [USER]})
    with pytest.raises(BadRequest, match="Missing required parameter: 'max_tokens'"):
        body_to_request.read_request(body)
    assert body_to_request.read_count_request(body).messages == (USER,)


@settings(max_examples=examples(300))
@given(
    st.dictionaries(st.sampled_from([*body_to_request.MessagesBody.model_fields, "new"]), json, max_size=4)
)
def test_any_parameters_are_read_or_refused(fields: dict[str, Any]) -> None:
    try:
        request = read(**fields)
    except BadRequest as error:
        assert error.param is not None
    else:
        orjson.dumps(request.params)


blocks = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image", "document", "tool_use", "tool_result", "thinking", "new"])},
    optional=dict.fromkeys(
        ("text", "id", "name", "input", "tool_use_id", "content", "source", "title"), json
    ),
)


@settings(max_examples=examples(300))
@given(st.sampled_from(["user", "assistant", "system"]), st.lists(blocks, max_size=4))
def test_any_blocks_are_read_or_refused(role: str, content: list[dict[str, Any]]) -> None:
    try:
        request = read(messages=[USER, {"role": role, "content": content}, USER])
    except BadRequest as error:
        assert error.param is not None
    else:
        openai_chat.read_request(orjson.dumps({"model": "m", "messages": request.messages}))
