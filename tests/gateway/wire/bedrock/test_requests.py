"""Requests for Bedrock: translated whole, by Amazon's description of its API, or refused by the field at fault."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from hypothesis import given, settings

from benchmarks.conformance.providers.bedrock_shapes import complaints
from gateway.errors import BadRequest
from gateway.types import ChatRequest
from gateway.wire.bedrock.request_to_body import FIELDS, tool_id, write_request
from tests.examples import examples
from tests.gateway.wire.conversations import Message, audio, conversations, image, pdf, plain, text_part

USER = {"role": "user", "content": "Hi"}
POINT = {"cachePoint": {"type": "default"}}


def write(*messages: Message, n: int = 1, prompted: bool = False, **params: Any) -> dict[str, Any]:
    request = ChatRequest("m", messages=messages or (USER,), n=n, params=params)
    sent = write_request(request, "m", prompted=prompted)
    assert complaints(orjson.loads(orjson.dumps(sent))) == ""
    return sent


def refusal(*messages: Message, **more: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        write(*messages, **more)
    return caught.value


def function(name: str, **more: Any) -> Message:
    return {"type": "function", "function": {"name": name, **more}}


def called(id: str = "call_1", arguments: str = "{}") -> Message:
    call = {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_words_and_defaults() -> None:
    assert write({"role": "system", "content": "Be brief."}, USER) == {
        "system": [{"text": "Be brief."}],
        "messages": [{"role": "user", "content": [{"text": "Hi"}]}],
    }


def test_parameters() -> None:
    sent = write(
        temperature=1.7,
        top_p=0.9,
        top_k=40,
        max_completion_tokens=7,
        stop=["END", "STOP"],
        thinking={"type": "enabled", "budget_tokens": 1024},
        reasoning_effort="minimal",
        service_tier="flex",
        user="u",
        seed=3,
    )
    del sent["messages"]
    assert sent == {
        "inferenceConfig": {"temperature": 1, "topP": 0.9, "maxTokens": 7, "stopSequences": ["END", "STOP"]},
        "additionalModelRequestFields": {
            "top_k": 40,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        },
        "outputConfig": {"effort": "low"},
        "serviceTier": {"type": "flex"},
    }
    request = ChatRequest(
        "m", messages=(USER,), params={"user": "u", "seed": 1, "logit_bias": {}, "stop": "x"}
    )
    assert FIELDS.left_out(request) == ["user", "seed"]
    assert set(write(stop="x", service_tier="auto")) == {"messages", "inferenceConfig"}


@pytest.mark.parametrize(
    "params",
    [
        {"n": 2},
        {"logprobs": True},
        {"presence_penalty": 0.5},
        {"response_format": {"type": "grammar"}},
        {"reasoning_effort": "lots"},
        {"bedrock": {"unheardOf": 1}},
        {"tool_choice": "perhaps", "tools": [function("f")]},
    ],
    ids=lambda params: next(iter(params)),
)
def test_what_it_cannot_do_is_refused_by_name(params: dict[str, Any]) -> None:
    error = refusal(**params)
    assert (error.param or "").split(".")[0] == next(iter(params))
    assert error.code == "unsupported_parameter"


def test_what_the_caller_says_in_amazons_words() -> None:
    guardrail = {"guardrailIdentifier": "abc", "guardrailVersion": "1"}
    sent = write(
        top_k=3,
        bedrock={"guardrailConfig": guardrail, "additionalModelRequestFields": {"reasoning_effort": "high"}},
    )
    assert sent["guardrailConfig"] == guardrail
    assert sent["additionalModelRequestFields"] == {"top_k": 3, "reasoning_effort": "high"}
    assert refusal(bedrock=7).param == "bedrock"


def test_forms_of_answers() -> None:
    schema = {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
    }
    described = {"name": "n", "schema": '{"type":"object"}'}
    assert write(response_format=schema)["outputConfig"] == {
        "textFormat": {"type": "json_schema", "structure": {"jsonSchema": described}}
    }
    prompted = write(response_format=schema, prompted=True)
    assert "outputConfig" not in prompted and '{"type":"object"}' in prompted["system"][0]["text"]
    assert "one JSON object" in write(response_format={"type": "json_object"})["system"][0]["text"]
    assert set(write(response_format={"type": "text"})) == {"messages"}


def test_tools() -> None:
    tools = [
        function("f", description="d", parameters={"type": "object", "properties": {}}, strict=True),
        {**function("g"), "cache_control": {"type": "ephemeral"}},
    ]
    assert write(tools=tools)["toolConfig"] == {
        "tools": [
            {
                "toolSpec": {
                    "name": "f",
                    "description": "d",
                    "inputSchema": {"json": {"type": "object", "properties": {}}},
                    "strict": True,
                }
            },
            {"toolSpec": {"name": "g", "inputSchema": {"json": {"type": "object", "properties": {}}}}},
            POINT,
        ]
    }
    named = {"type": "function", "function": {"name": "g"}}
    for choice, sent in ((named, {"tool": {"name": "g"}}), ("required", {"any": {}})):
        assert write(tools=tools, tool_choice=choice)["toolConfig"]["toolChoice"] == sent
    assert "toolConfig" not in write(tools=tools, tool_choice="none")
    result = {"role": "tool", "tool_call_id": "call_1", "content": "x"}
    assert refusal(USER, called(), result, tools=tools, tool_choice="none").param == "tool_choice"
    assert refusal(tools=[{"type": "web_search"}]).param == "tools[0].type"


def test_calls_and_results() -> None:
    sent = write(
        USER,
        called("call|1", '{"x":1}'),
        {"role": "tool", "tool_call_id": "call|1", "content": [text_part("two"), image("png", "AAAA")]},
        {"role": "user", "content": "And?"},
        called("c2"),
        {"role": "tool", "tool_call_id": "c2", "content": ""},
    )
    assert sent["messages"][1:] == [
        {
            "role": "assistant",
            "content": [{"toolUse": {"toolUseId": "call_1", "name": "f", "input": {"x": 1}}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "toolResult": {
                        "toolUseId": "call_1",
                        "content": [
                            {"text": "two"},
                            {"image": {"format": "png", "source": {"bytes": "AAAA"}}},
                        ],
                    }
                },
                {"text": "And?"},
            ],
        },
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "c2", "name": "f", "input": {}}}]},
        {
            "role": "user",
            "content": [{"toolResult": {"toolUseId": "c2", "content": [{"text": "(nothing)"}]}}],
        },
    ]


@pytest.mark.parametrize("id", ["tooluse_A-1.b:2", "", "ü", "x" * 65, "call|" * 30])
def test_ids_of_calls_fit(id: str) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_.:-]{1,64}", tool_id(id))


def test_thoughts_go_back_as_they_came() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "aGlk"},
    ]
    [_, said, _] = write(USER, {"role": "assistant", "content": "Yes", "thinking_blocks": blocks}, USER)[
        "messages"
    ]
    assert said["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
        {"reasoningContent": {"redactedContent": "aGlk"}},
        {"text": "Yes"},
    ]


def test_prompt_caching_and_partial_answers() -> None:
    cached = {**text_part("Long."), "cache_control": {"type": "ephemeral"}}
    sent = write({"role": "system", "content": [cached]}, {"role": "user", "content": [cached]})
    assert sent["system"] == [{"text": "Long."}, POINT]
    assert sent["messages"][0]["content"] == [{"text": "Long."}, POINT]
    assert write(USER, {"role": "assistant", "content": "Well, "})["messages"][-1]["content"] == [
        {"text": "Well,"}
    ]


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        (image("jpeg", "AAAA"), {"image": {"format": "jpeg", "source": {"bytes": "AAAA"}}}),
        (audio("mp3", "AAAA"), {"audio": {"format": "mp3", "source": {"bytes": "AAAA"}}}),
        (pdf("AAAA"), {"document": {"format": "pdf", "name": "a", "source": {"bytes": "AAAA"}}}),
        (
            {"type": "video_url", "video_url": {"url": "s3://bucket/a.mp4"}},
            {"video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://bucket/a.mp4"}}}},
        ),
    ],
    ids=["image", "audio", "pdf", "video"],
)
def test_media(part: Message, sent: object) -> None:
    assert write({"role": "user", "content": [part]})["messages"][0]["content"] == [sent]


def test_documents_have_names_of_their_own() -> None:
    def named(name: str) -> Message:
        file = {"filename": name, "file_data": "data:text/plain;base64,AAAA"}
        return {"type": "file", "file": file}

    content = [named("Q1/Q2  rëport.v2.txt"), named("Q1 Q2 r port v2.txt"), named("!.txt")]
    sent = write({"role": "user", "content": content})["messages"][0]["content"]
    assert [block["document"]["name"] for block in sent] == [
        "Q1 Q2 r port v2",
        "Q1 Q2 r port v2 2",
        "document",
    ]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "https://x.example/cat.png"}},
        image("tiff", "AAAA"),
        {"type": "file", "file": {"file_data": "data:application/zip;base64,AAAA"}},
    ],
    ids=["url", "tiff", "zip"],
)
def test_media_that_it_does_not_take_are_refused_by_their_path(part: Message) -> None:
    error = refusal({"role": "user", "content": [part]})
    assert (error.param or "").startswith("messages[0].content[0].")
    assert error.code == "unsupported_parameter"


# Back again


def read(body: dict[str, Any]) -> list[Message]:
    """The conversation in a body, as OpenAI's messages in their plain form."""
    messages: list[Message] = []
    if "system" in body:
        messages.append({"role": "system", "content": [text_part(block["text"]) for block in body["system"]]})
    for message in body["messages"]:
        parts: list[Message] = []
        calls: list[Message] = []
        for block in message["content"]:
            match block:
                case {"text": text}:
                    parts.append(text_part(text))
                case {"image": {"format": kind, "source": {"bytes": data}}}:
                    parts.append(image(kind, data))
                case {"audio": {"format": kind, "source": {"bytes": data}}}:
                    parts.append(audio(kind, data))
                case {"document": {"format": "pdf", "source": {"bytes": data}}}:
                    parts.append(pdf(data))
                case {"toolUse": {"toolUseId": id, "name": name, "input": arguments}}:
                    call = {"name": name, "arguments": arguments}
                    calls.append({"id": id, "type": "function", "function": call})
                case {"toolResult": {"toolUseId": id, "content": [{"text": text}]}}:
                    messages.append({"role": "tool", "tool_call_id": id, "content": [text_part(text)]})
        if parts or calls:
            messages.append(
                {"role": message["role"], "content": parts, **({"tool_calls": calls} if calls else {})}
            )
    return messages


def merged(messages: list[Message]) -> list[Message]:
    """Messages of one role that follow each other as one: what an API of turns keeps of them."""
    found: list[Message] = []
    for message in messages:
        if found and found[-1]["role"] == message["role"] != "tool":
            found[-1] = {**found[-1], "content": [*found[-1]["content"], *message["content"]]}
        else:
            found.append(message)
    return found


@settings(max_examples=examples(300))
@given(conversations())
def test_a_conversation_reads_back_as_it_was_and_has_amazons_shape(messages: list[Message]) -> None:
    sent = orjson.loads(orjson.dumps(write_request(ChatRequest("m", messages=tuple(messages)), "m")))
    assert complaints(sent) == ""
    assert read(sent) == merged(plain(messages))
