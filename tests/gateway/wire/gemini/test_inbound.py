"""Requests in Google's dialect, read: each field is translated, refused by name for other models, or known to be left
out; and what a model of Google's gets is what the caller wrote."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.guards.texts.request_texts import RequestTexts
from gateway.policy.schema.limits import RequestLimits
from gateway.types import ChatRequest
from gateway.wire.gemini import body_to_request, generation_config
from gateway.wire.gemini.body_to_request import GenerateContentBody
from gateway.wire.gemini.request_to_body import write_request
from gateway.wire.gemini.schemas import closed, is_strict, to_json_schema
from gateway.wire.turns import messages_of
from tests.examples import examples
from tests.gateway.wire.conversations import conversations

ASK: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}
SCHEMA = {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}, "required": ["a"]}
CONFIG: dict[str, Any] = {
    "temperature": 0.25,
    "topP": 0.5,
    "topK": 7,
    "maxOutputTokens": 77,
    "stopSequences": ["END"],
    "candidateCount": 2,
    "seed": 3,
    "presencePenalty": 0.5,
    "frequencyPenalty": 0.5,
    "responseLogprobs": True,
    "logprobs": 2,
    "responseMimeType": "application/json",
    "responseSchema": SCHEMA,
    "responseJsonSchema": {"type": "object"},
    "responseModalities": ["TEXT", "IMAGE"],
    "speechConfig": {"voiceConfig": {}},
    "imageConfig": {"aspectRatio": "1:1"},
    "thinkingConfig": {"thinkingBudget": 512},
    "mediaResolution": "MEDIA_RESOLUTION_LOW",
    "audioTimestamp": True,
    "enableAffectiveDialog": True,
    "enableEnhancedCivicAnswers": True,
    "modelSelectionConfig": {},
    "routingConfig": {},
    "newNextYear": 1,
}
NEEDS = {"logprobs": ("responseLogprobs",), "responseSchema": ("responseMimeType",)}
NEEDS["responseJsonSchema"] = NEEDS["responseSchema"]


def read(body: Any, **more: Any) -> ChatRequest:
    return body_to_request.read_request(orjson.dumps(body), model="m", **more)


def canonical(request: ChatRequest) -> Any:
    return request.messages, request.params, request.n


@pytest.mark.parametrize("name", CONFIG)
def test_each_setting_is_translated_refused_or_known_to_be_left_out(name: str) -> None:
    needed = {one: CONFIG[one] for one in NEEDS.get(name, ())}
    plain = read({**ASK, "generationConfig": needed})
    request = read({**ASK, "generationConfig": {**needed, name: CONFIG[name]}})
    assert request.native is not None
    changed = canonical(request) != canonical(plain)
    beyond = request.native.beyond
    assert changed + (beyond is not None) + (name in generation_config.IGNORED) == 1
    if beyond is not None:
        assert beyond[0] == f"generationConfig.{name}"
        with pytest.raises(BadRequest) as caught:
            messages_of(request)
        assert caught.value.param == beyond[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("safetySettings", [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]),
        ("cachedContent", "cachedContents/1"),
        ("labels", {"team": "a"}),
        ("newNextYear", {"a": 1}),
        ("tools", [{"googleSearch": {}}]),
        ("tools", [{"codeExecution": {}}]),
        ("tools", [{"functionDeclarations": [{"name": "f", "behavior": "NON_BLOCKING"}]}]),
    ],
)
def test_so_is_each_field_of_a_request(name: str, value: Any) -> None:
    request = read({**ASK, name: value})
    assert request.native is not None
    told = request.native.beyond is not None and request.native.beyond[0].startswith(name)
    assert told + (name in body_to_request.IGNORED) == 1
    assert request.native.body[name] == value


def test_all_that_is_common_is_translated() -> None:
    request = read(
        {
            "system_instruction": {"parts": {"text": "Be brief."}},
            "contents": [
                {
                    "role": "user",
                    "parts": [{"text": "Look"}, {"inline_data": {"mime_type": "image/png", "data": "-_8"}}],
                },
                {
                    "role": "model",
                    "parts": [
                        {"text": "Hm.", "thought": True, "thoughtSignature": "s"},
                        {"text": "I'll "},
                        {"text": "see."},
                        {"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "s"},
                        {"functionCall": {"name": "f", "args": {"a": 2}}},
                        {"functionCall": {"name": "g", "id": "g1"}},
                    ],
                },
                {
                    "role": "user",
                    "parts": [
                        {"functionResponse": {"name": "g", "id": "g1", "response": {"error": "no"}}},
                        {"functionResponse": {"name": "f", "response": {"output": "one"}}},
                        {"functionResponse": {"name": "f", "response": {"b": 2}}},
                        {"text": "Go on."},
                    ],
                },
            ],
            "tools": [
                {"functionDeclarations": [{"name": "f", "description": "F", "parameters": SCHEMA}]},
                {"functionDeclarations": [{"name": "g", "parametersJsonSchema": {"type": "object"}}]},
            ],
            "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
            "generationConfig": {"temperature": 1, "topK": 40.0, "responseMimeType": "application/json"},
        }
    )
    f = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a":1}'}, "id": "call_2_3"}
    assert request.native is not None and request.native.beyond is None
    assert request.messages == (
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,+/8="}},
            ],
        },
        {
            "role": "assistant",
            "content": "I'll see.",
            "tool_calls": [
                call,
                {"type": "function", "function": {"name": "f", "arguments": '{"a":2}'}, "id": "call_2_4"},
                {"type": "function", "function": {"name": "g", "arguments": "{}"}, "id": "g1"},
            ],
        },
        {"role": "tool", "tool_call_id": "g1", "content": "Error: no"},
        {"role": "tool", "tool_call_id": "call_2_3", "content": "one"},
        {"role": "tool", "tool_call_id": "call_2_4", "content": '{"b":2}'},
        {"role": "user", "content": "Go on."},
    )
    assert request.params == {
        "temperature": 1,
        "top_k": 40,
        "response_format": {"type": "json_object"},
        "tools": [{"type": "function", "function": {"name": "f", "description": "F", "parameters": f}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    }


@pytest.mark.parametrize(
    ("config", "choice"),
    [
        ({"mode": "AUTO"}, None),
        ({"mode": "any"}, "required"),
        ({"mode": "NONE"}, "none"),
        ({"mode": "VALIDATED"}, None),
        ({}, None),
    ],
)
def test_tool_choices(config: dict[str, Any], choice: Any) -> None:
    tools = [{"functionDeclarations": [{"name": "f"}, {"name": "g"}]}]
    request = read({**ASK, "tools": tools, "toolConfig": {"functionCallingConfig": config}})
    assert request.params.get("tool_choice") == choice
    assert [tool["function"]["name"] for tool in request.params["tools"]] == ["f", "g"]


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({"executableCode": {"code": "1", "language": "PYTHON"}}, "contents[0].parts[0].executableCode"),
        ({"text": "x", "videoMetadata": {"fps": 1}}, "contents[0].parts[0].videoMetadata"),
        ({"fileData": {"fileUri": "gs://b/a.png", "mimeType": "image/png"}}, "contents[0].parts[0].fileData"),
        ({"newNextYear": {}}, "contents[0].parts[0].newNextYear"),
    ],
)
def test_parts_that_only_google_knows_are_refused_by_name_for_others(part: Any, where: str) -> None:
    body = {"contents": [{"parts": [part, {"text": "Hi"}]}]}
    request = read(body)
    assert request.native is not None and request.native.beyond is not None
    assert request.native.beyond[0] == where
    assert write_request(request, "gemini-2.5-pro") == body


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "contents"),
        ({"contents": []}, "contents"),
        ({"contents": [{"role": "assistant", "parts": [{"text": "a"}]}]}, "contents[0].role"),
        ({"contents": [{"parts": [{"text": 1}]}]}, "contents[0].parts[0].text"),
        ({"contents": [{"parts": [{"functionCall": {"name": "f"}}]}]}, "contents[0].parts[0]"),
        ({"contents": [{"role": "model", "parts": [{"functionCall": {"name": "f"}}]}]}, "contents"),
        (
            {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png"}}]}]},
            "contents[0].parts[0].inlineData.data",
        ),
        ({**ASK, "generationConfig": {"temperature": 3}}, "generationConfig.temperature"),
        ({**ASK, "generationConfig": {"candidateCount": 0}}, "generationConfig.candidateCount"),
        ({**ASK, "generationConfig": {"topK": 1e300}}, "generationConfig.topK"),
        ({**ASK, "tools": [{"functionDeclarations": [{}]}]}, "tools[0].functionDeclarations[0].name"),
    ],
)
def test_what_is_wrong_is_named_as_the_caller_wrote_it(body: Any, param: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(body)
    assert caught.value.param == param


@pytest.mark.parametrize("limit", ["messages", "parts", "tools", "stop", "answers"])
def test_the_policys_limits_hold(limit: str) -> None:
    tools = [{"functionDeclarations": [{"name": "f"}, {"name": "g"}]}]
    body = {
        "contents": [{"parts": [{"text": "a"}, {"text": "b"}]}, {"parts": [{"text": "c"}]}],
        "tools": tools,
        "generationConfig": {"stopSequences": ["a", "b"], "candidateCount": 2},
    }
    read(body)
    with pytest.raises(BadRequest):
        read(body, limits=RequestLimits(**{limit: 1}))


def test_schemas() -> None:
    schema = {
        "type": "OBJECT",
        "nullable": True,
        "propertyOrdering": ["a"],
        "properties": {
            "a": {"type": "ARRAY", "items": {"type": "INTEGER", "nullable": True}, "minItems": "1"},
            "type": {"type": "STRING", "format": "enum", "enum": ["x"], "nullable": True},
            "b": {"anyOf": [{"type": "NUMBER"}, {"type": "BOOLEAN"}]},
        },
        "required": ["a", "type", "b"],
    }
    found = to_json_schema(schema, "s")
    assert found == {
        "type": ["object", "null"],
        "properties": {
            "a": {"type": "array", "items": {"type": ["integer", "null"]}, "minItems": 1},
            "type": {"type": ["string", "null"], "enum": ["x", None]},
            "b": {"anyOf": [{"type": "number"}, {"type": "boolean"}]},
        },
        "required": ["a", "type", "b"],
    }
    assert to_json_schema(found, "s") == found
    assert is_strict(closed(found)) and not is_strict(found)
    assert not is_strict(closed({**found, "required": ["a"]}))


@settings(max_examples=examples(100))
@given(conversations())
def test_what_is_sent_to_google_reads_back(messages: list[dict[str, Any]]) -> None:
    sent = write_request(ChatRequest("m", messages=tuple(messages)), "gemini-2.5-pro")
    request = read(sent)
    again = write_request(ChatRequest("m", messages=request.messages), "gemini-2.5-pro")
    assert again["contents"] == sent["contents"]
    assert write_request(request, "gemini-2.5-pro") == sent


def test_the_fields_that_are_checked_are_those_of_the_api() -> None:
    assert {"contents", "systemInstruction", "tools"} <= GenerateContentBody.model_fields.keys()


FULL: dict[str, Any] = {
    "systemInstruction": {"parts": [{"text": "S"}]},
    "contents": [
        {
            "role": "user",
            "parts": [{"text": "Hi"}, {"inlineData": {"mimeType": "image/png", "data": "AA=="}}],
        },
        {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {"a": 1}, "id": "1"}}]},
        {
            "role": "user",
            "parts": [
                {
                    "functionResponse": {
                        "name": "f",
                        "id": "1",
                        "response": {"a": 1},
                        "parts": [{"text": "a"}],
                    }
                },
                {"fileData": {"fileUri": "https://example.com/a.png", "mimeType": "image/png"}},
            ],
        },
    ],
    "tools": [{"functionDeclarations": [{"name": "f", "description": "d", "parameters": SCHEMA}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
    "generationConfig": {**CONFIG, "responseMimeType": "application/json"},
    "safetySettings": [{"category": "a", "threshold": "b"}],
}
JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [None, 0, -1, 1.5, True, "", "x", [], [None], [[]], {}, {"a": None}, {"parts": [1]}]
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(one for key, below in inner for one in paths(below, (*path, key)))]


@settings(max_examples=examples(400))
@given(st.sampled_from(paths(FULL)[1:]), JUNK)
def test_nothing_but_a_bad_request_comes_of_junk(path: tuple[Any, ...], junk: Any) -> None:
    body = orjson.loads(orjson.dumps(FULL))
    *above, last = path
    holder = body
    for step in above:
        holder = holder[step]
    holder[last] = junk
    for reader in (body_to_request.read_request, body_to_request.read_count_request):
        try:
            request = reader(orjson.dumps(body), model="m")
            for _ in RequestTexts.of(request).texts:
                pass
            messages_of(request)
        except BadRequest:
            pass
