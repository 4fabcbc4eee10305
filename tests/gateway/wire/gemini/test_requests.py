"""Requests for Gemini: translated whole, or refused with the name of the field at fault."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings

from gateway.errors import BadRequest
from gateway.types import ChatRequest
from gateway.wire.anthropic import body_to_request
from gateway.wire.gemini.request_to_body import ANY_SIGNATURE, FIELDS, write_request
from tests.examples import examples
from tests.gateway.wire.conversations import Message, audio, conversations, image, pdf, plain, text_part

USER = {"role": "user", "content": "Hi"}


def write(*messages: Message, model: str = "gemini-2.5-flash", n: int = 1, **params: Any) -> dict[str, Any]:
    request = ChatRequest("m", messages=messages or (USER,), n=n, params=params)
    sent = write_request(request, model)
    orjson.dumps(sent)
    return sent


def config(**params: Any) -> Any:
    return write(**params).get("generationConfig")


def refusal(*messages: Message, **more: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        write(*messages, **more)
    return caught.value


def call(id: str = "call_1", arguments: str = "{}", **more: Any) -> Message:
    return {"id": id, "type": "function", "function": {"name": "f", "arguments": arguments}, **more}


def called(**more: Any) -> Message:
    return {"role": "assistant", "content": None, "tool_calls": [call(**more)]}


def test_words_and_defaults() -> None:
    assert write({"role": "developer", "content": "Be brief."}, USER) == {
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [{"role": "user", "parts": [{"text": "Hi"}]}],
    }


def test_parameters() -> None:
    assert config(
        temperature=1.7,
        top_p=0.9,
        top_k=40,
        seed=7,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        max_completion_tokens=9,
        stop="END",
        logprobs=True,
        top_logprobs=3,
        user="u",
        store=True,
        n=2,
        stream_options={"include_usage": True},
    ) == {
        "temperature": 1.7,
        "topP": 0.9,
        "topK": 40,
        "seed": 7,
        "presencePenalty": 0.5,
        "frequencyPenalty": -0.5,
        "maxOutputTokens": 9,
        "stopSequences": ["END"],
        "responseLogprobs": True,
        "logprobs": 3,
        "candidateCount": 2,
    }
    assert config(logprobs=False, top_logprobs=0, logit_bias={}) is None
    request = ChatRequest("m", messages=(USER,), params={"user": "u", "seed": 1, "logit_bias": {}, "new": 1})
    assert FIELDS.left_out(request) == ["user", "new"]


@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": {"1": 5}},
        {"web_search_options": {}},
        {"modalities": ["text", "audio"]},
        {"functions": [{"name": "f"}]},
        {"response_format": {"type": "grammar"}},
        {"reasoning_effort": "lots"},
        {"google": {"unheard_of": 1}},
        {"tool_choice": "perhaps", "tools": [{"type": "function", "function": {"name": "f"}}]},
    ],
    ids=lambda params: next(iter(params)),
)
def test_what_it_cannot_do_is_refused_by_name(params: dict[str, Any]) -> None:
    error = refusal(**params)
    assert (error.param or "").split(".")[0] == next(iter(params))
    assert error.code == "unsupported_parameter"


def test_raw_prompts_are_refused() -> None:
    with pytest.raises(BadRequest, match="chat/completions"):
        write_request(ChatRequest("m", prompt="Once"), "gemini-2.5-flash")


def test_what_only_anthropic_knows_is_refused_by_name() -> None:
    block = {"type": "document", "source": {"type": "file", "file_id": "f"}}
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [block]}]}
    with pytest.raises(BadRequest, match="a document by file"):
        write_request(body_to_request.read_request(orjson.dumps(body)), "gemini-2.5-flash")


@pytest.mark.parametrize(
    ("form", "sent"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"responseMimeType": "application/json"}),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
            {"responseMimeType": "application/json", "responseJsonSchema": {"type": "object"}},
        ),
    ],
    ids=["text", "object", "schema"],
)
def test_forms_of_answers(form: dict[str, Any], sent: object) -> None:
    assert config(response_format=form) == sent


@pytest.mark.parametrize(
    ("model", "params", "sent"),
    [
        ("gemini-2.5-flash", {"reasoning_effort": "none"}, {"thinkingBudget": 0}),
        ("gemini-2.5-pro", {"reasoning_effort": "low"}, {"thinkingBudget": 1024, "includeThoughts": True}),
        ("gemini-2.5-pro", {"reasoning_effort": "high"}, {"thinkingBudget": 24576, "includeThoughts": True}),
        ("gemini-3-pro", {"reasoning_effort": "low"}, {"thinkingLevel": "low", "includeThoughts": True}),
        (
            "publishers/google/models/gemini-3.5-flash",
            {"reasoning_effort": "none"},
            {"thinkingLevel": "minimal"},
        ),
        ("gemini-10-pro", {"reasoning_effort": "xhigh"}, {"thinkingLevel": "high", "includeThoughts": True}),
        (
            "gemini-2.5-pro",
            {"thinking": {"type": "enabled", "budget_tokens": 2048}, "reasoning_effort": "low"},
            {"thinkingBudget": 2048, "includeThoughts": True},
        ),
        ("gemini-2.5-pro", {"thinking": {"type": "disabled"}}, {"thinkingBudget": 0}),
        (
            "gemini-2.5-pro",
            {
                "extra_body": {
                    "google": {"thinking_config": {"thinking_budget": 800, "include_thoughts": True}}
                }
            },
            {"thinkingBudget": 800, "includeThoughts": True},
        ),
    ],
)
def test_thinking(model: str, params: dict[str, Any], sent: object) -> None:
    assert write(model=model, **params)["generationConfig"]["thinkingConfig"] == sent


def test_what_the_caller_says_in_googles_words() -> None:
    settings = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    sent = write(google={"safety_settings": settings, "cached_content": "cachedContents/1"})
    assert (sent["safetySettings"], sent["cachedContent"]) == (settings, "cachedContents/1")


def test_tools() -> None:
    tools = [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "g", "strict": True}},
    ]
    sent = write(tools=tools, tool_choice={"type": "function", "function": {"name": "g"}})
    assert sent["tools"] == [
        {
            "functionDeclarations": [
                {"name": "f", "description": "d", "parametersJsonSchema": {"type": "object"}},
                {"name": "g"},
            ]
        }
    ]
    assert sent["toolConfig"] == {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["g"]}}
    for choice, mode in (("none", "NONE"), ("required", "ANY")):
        assert write(tools=tools, tool_choice=choice)["toolConfig"]["functionCallingConfig"] == {"mode": mode}
    assert "toolConfig" not in write(tools=tools, tool_choice="auto")
    assert refusal(tools=[{"type": "web_search"}]).param == "tools[0].type"


def test_calls_and_results() -> None:
    sent = write(
        USER,
        called(arguments='{"x":1}'),
        {"role": "tool", "tool_call_id": "call_1", "content": '{"y":2}'},
        {"role": "user", "content": "And?"},
        called(id="call_2"),
        {"role": "tool", "tool_call_id": "call_2", "content": [text_part("[1]"), image("png", "AAAA")]},
    )
    assert sent["contents"][1:] == [
        {"role": "model", "parts": [{"functionCall": {"id": "call_1", "name": "f", "args": {"x": 1}}}]},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "call_1", "name": "f", "response": {"y": 2}}},
                {"text": "And?"},
            ],
        },
        {"role": "model", "parts": [{"functionCall": {"id": "call_2", "name": "f", "args": {}}}]},
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "call_2", "name": "f", "response": {"result": "[1]"}}},
                {"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
            ],
        },
    ]
    error = refusal(USER, {"role": "tool", "tool_call_id": "call_9", "content": "x"})
    assert error.param == "messages[1].tool_call_id"


def test_signatures_go_back_where_they_came_from() -> None:
    signed = {"google": {"thought_signature": "c2ln"}}
    [_, said] = write(USER, {**called(extra_content=signed), "content": "Well"}, model="gemini-3-pro")[
        "contents"
    ]
    assert [part.get("thoughtSignature") for part in said["parts"]] == [None, "c2ln"]
    [_, said] = write(USER, {"role": "assistant", "content": "Well", "extra_content": signed})["contents"]
    assert said["parts"] == [{"text": "Well", "thoughtSignature": "c2ln"}]


def test_calls_of_other_models_are_marked_as_such_where_signatures_are_wanted() -> None:
    two = {"role": "assistant", "tool_calls": [call("a"), call("b")]}
    for model, expected in (("gemini-3-pro", [ANY_SIGNATURE, None]), ("gemini-2.5-pro", [None, None])):
        said = write(USER, two, model=model)["contents"][1]
        assert [part.get("thoughtSignature") for part in said["parts"]] == expected


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        (image("png", "AAAA"), {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}),
        (audio("mp3", "AAAA"), {"inlineData": {"mimeType": "audio/mp3", "data": "AAAA"}}),
        (pdf("AAAA"), {"inlineData": {"mimeType": "application/pdf", "data": "AAAA"}}),
        (
            {"type": "image_url", "image_url": {"url": "https://x.example/cat.jpg?size=2"}},
            {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://x.example/cat.jpg?size=2"}},
        ),
        (
            {"type": "file", "file": {"file_id": "gs://bucket/a.pdf"}},
            {"fileData": {"mimeType": "application/pdf", "fileUri": "gs://bucket/a.pdf"}},
        ),
        (
            {"type": "video_url", "video_url": {"url": "gs://bucket/a"}},
            {"fileData": {"fileUri": "gs://bucket/a"}},
        ),
    ],
    ids=["image", "audio", "pdf", "image-url", "file-id", "video"],
)
def test_media(part: Message, sent: object) -> None:
    assert write({"role": "user", "content": [part]})["contents"][0]["parts"] == [sent]


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([], "messages"),
        ([{"role": "system", "content": "x"}], "messages"),
        ([{"role": "oracle", "content": "x"}], "messages[0].role"),
        ([{"role": "system", "content": [image("png", "A")]}], "messages[0].content[0].image_url.url"),
        ([{"role": "user", "content": 7}], "messages[0].content"),
        ([{"role": "user", "content": [7]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "hologram"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "no url"}}]}],
            "messages[0].content[0].image_url.url",
        ),
        (
            [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}],
            "messages[0].content[0].file.file_id",
        ),
        ([USER, {"role": "assistant", "function_call": {"name": "f"}}], "messages[1].function_call"),
        ([USER, called(arguments="[1]")], "messages[1].tool_calls[0].function.arguments"),
        ([USER, {"role": "assistant", "tool_calls": [{"id": 1}]}], "messages[1].tool_calls[0]"),
        ([USER, {"role": "tool", "content": "x"}], "messages[1].tool_call_id"),
    ],
)
def test_what_is_malformed_is_refused_by_its_path(messages: list[Message], where: str) -> None:
    with pytest.raises(BadRequest) as caught:
        write_request(ChatRequest("m", messages=tuple(messages)), "gemini-2.5-flash")
    assert caught.value.param == where


# Back again


def read(body: dict[str, Any]) -> list[Message]:
    """The conversation in a body, as OpenAI's messages in their plain form."""
    messages: list[Message] = []
    if "systemInstruction" in body:
        texts = [text_part(part["text"]) for part in body["systemInstruction"]["parts"]]
        messages.append({"role": "system", "content": texts})
    for content in body["contents"]:
        parts: list[Message] = []
        calls: list[Message] = []
        for part in content["parts"]:
            match part:
                case {"text": text}:
                    parts.append(text_part(text))
                case {"inlineData": {"mimeType": kind, "data": data}}:
                    family, _, ending = kind.partition("/")
                    made = {"image": image, "audio": audio}.get(family)
                    parts.append(made(ending, data) if made else pdf(data))
                case {"functionCall": {"id": id, "name": name, "args": args}}:
                    function = {"name": name, "arguments": args}
                    calls.append({"id": id, "type": "function", "function": function})
                case {"functionResponse": {"id": id, "response": response}}:
                    text = (
                        response["result"]
                        if response.keys() == {"result"}
                        else orjson.dumps(response).decode()
                    )
                    messages.append({"role": "tool", "tool_call_id": id, "content": [text_part(text)]})
        role = {"model": "assistant", "user": "user"}[content["role"]]
        if parts or calls:
            messages.append({"role": role, "content": parts, **({"tool_calls": calls} if calls else {})})
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
def test_a_conversation_reads_back_as_it_was(messages: list[Message]) -> None:
    sent = write_request(ChatRequest("m", messages=tuple(messages)), "gemini-2.5-flash")
    assert read(orjson.loads(orjson.dumps(sent))) == merged(plain(messages))
