"""Reading requests: whatever comes in is either understood or refused with the name of the field at fault."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from gateway.errors import BadRequest
from gateway.wire.anthropic import body_to_request
from gateway.wire.openai import chat as openai_chat
from gateway.wire.openai import completions as openai_completions
from gateway.wire.openai import embeddings as openai_embeddings
from gateway.wire.openai import moderations as openai_moderations
from tests.examples import examples

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION = {"model": "m", "prompt": "Once"}

json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    # orjson writes no lone surrogates; the bytes test below covers them.
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
chat_fields = st.sampled_from([*openai_chat.ChatBody.model_fields, "new_parameter"])
completion_fields = st.sampled_from([*openai_completions.CompletionBody.model_fields, "new_parameter"])


def chat(**more: Any) -> bytes:
    return orjson.dumps({**CHAT, **more})


def completion(**more: Any) -> bytes:
    return orjson.dumps({**COMPLETION, **more})


@given(st.binary(max_size=60) | json.map(orjson.dumps))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for dialect in (openai_chat, openai_completions):
        with pytest.raises(BadRequest) as refusal:
            dialect.read_request(data)
        assert refusal.value.status == 400
        orjson.dumps(refusal.value.body())


@settings(max_examples=examples(300))
@given(st.dictionaries(chat_fields, json, max_size=5))
def test_any_chat_parameters_are_read_or_refused(fields: dict[str, Any]) -> None:
    try:
        request = openai_chat.read_request(orjson.dumps({**CHAT, **fields}))
    except BadRequest as error:
        assert error.param is not None
        assert error.param in error.message
        orjson.dumps(error.body())
    else:
        orjson.dumps(openai_chat.write_request(request, "m2"))


@settings(max_examples=examples(300))
@given(st.dictionaries(completion_fields, json, max_size=5))
def test_any_completion_parameters_are_read_or_refused(fields: dict[str, Any]) -> None:
    try:
        request = openai_completions.read_request(orjson.dumps({**COMPLETION, **fields}))
    except BadRequest as error:
        assert error.param is not None
        assert error.param in error.message
    else:
        orjson.dumps(openai_chat.write_request(request, "m2"))


@given(json)
def test_any_messages_are_read_or_refused(messages: Any) -> None:
    try:
        request = openai_chat.read_request(orjson.dumps({"model": "m", "messages": messages}))
    except BadRequest as error:
        assert error.param is not None
        assert error.param.startswith("messages")
    else:
        assert list(request.messages or ()) == messages


DEEP = orjson.loads(b"[" * 300 + b"]" * 300)

BAD_CHAT = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": {}}, "messages"),
    ({"messages": [None]}, "messages[0]"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": None, "content": "Hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": {}}]}, "messages[0].content"),
    (
        {"messages": [*CHAT["messages"], {"role": "user", "content": [{"text": "Hi"}]}]},
        "messages[1].content[0].type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        "messages[0].content[0].text",
    ),
    ({"messages": [{"role": "user", "content": ["Hi"]}]}, "messages[0].content[0]"),
    ({"model": ""}, "model"),
    ({"model": None}, "model"),
    ({"model": 4}, "model"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {}}, "stream_options"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": []}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"n": 0}, "n"),
    ({"n": -1}, "n"),
    ({"n": 129}, "n"),
    ({"n": 1.5}, "n"),
    ({"n": True}, "n"),
    ({"n": "1"}, "n"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"max_completion_tokens": True}, "max_completion_tokens"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": [1]}, "temperature"),
    ({"top_p": 1.01}, "top_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"stop": 5}, "stop"),
    ({"stop": ["a", 5]}, "stop[1]"),
    ({"seed": 1.5}, "seed"),
    ({"seed": False}, "seed"),
    ({"logit_bias": {"50256": "high"}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"user": 5}, "user"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"tools": {}}, "tools"),
    ({"tools": ["get_time"]}, "tools[0]"),
    ({"tool_choice": 1}, "tool_choice"),
    ({"response_format": "json"}, "response_format"),
    ({"parallel_tool_calls": 0}, "parallel_tool_calls"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_CHAT, ids=lambda value: repr(value)[:60])
def test_bad_chat_fields_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        openai_chat.read_request(chat(**fields))
    assert refusal.value.param == param
    assert f"'{param}'" in refusal.value.message
    assert refusal.value.code in ("invalid_value", "missing_required_parameter")
    assert refusal.value.body()["error"]["type"] == "invalid_request_error"


BAD_COMPLETIONS = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [1, True]}, "prompt[1]"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt"),
    ({"prompt": {"text": "a"}}, "prompt"),
    ({"logprobs": 6}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"best_of": 21}, "best_of"),
    ({"echo": "no"}, "echo"),
    ({"suffix": 5}, "suffix"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_COMPLETIONS, ids=lambda value: repr(value)[:60])
def test_bad_completion_fields_are_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        openai_completions.read_request(completion(**fields))
    assert refusal.value.param is not None
    assert refusal.value.param.startswith(param)
    assert refusal.value.param in refusal.value.message


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_missing_fields_are_named(missing: str) -> None:
    with pytest.raises(BadRequest, match=f"'{missing}'") as refusal:
        openai_chat.read_request(
            orjson.dumps({name: value for name, value in CHAT.items() if name != missing})
        )
    assert (refusal.value.param, refusal.value.code) == (missing, "missing_required_parameter")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty"),
        (b"  ", "is empty"),
        (b"{", "not valid JSON"),
        (b"[]", "an array"),
        (b'"hi"', "a string"),
        (b"null", "null"),
        (b"5", "a bare value"),
        (b'{"model": "m", "temperature": NaN}', "not valid JSON"),
        (b'{"model": "m", "temperature": Infinity}', "not valid JSON"),
        (b'{"model": "m", "temperature": 1e999}', "not valid JSON"),
        (b'{"model": "\\ud800"}', "not valid JSON"),
        (b'{"model": "\xed\xa0\x80"}', "not valid JSON"),
        (b'{"model": "\xff"}', "not valid JSON"),
        (b"\xef\xbb\xbf{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"x": ' * 300 + b"1" + b"}" * 300, "nested"),
        (chat(new_parameter=1).replace(b":1", b":" + b"[" * 300 + b"]" * 300), "nested"),
        (chat(tools=[{"x": 1}]).replace(b":1", b":" + b"[" * 260 + b"]" * 260), "nested"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_no_object_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(BadRequest, match=what) as refusal:
        openai_chat.read_request(data)
    assert refusal.value.code == "invalid_json"


def test_nesting_that_can_be_forwarded_is_not_refused() -> None:
    data = chat(new_parameter=1).replace(b":1", b":" + b"[" * 200 + b"]" * 200)
    request = openai_chat.read_request(data)
    assert orjson.loads(orjson.dumps(openai_chat.write_request(request, "m")))[
        "new_parameter"
    ] == orjson.loads(b"[" * 200 + b"]" * 200)


def test_long_conversations_are_not_mistaken_for_deep_ones() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "{[{["}]}] * 500
    assert len(openai_chat.read_request(chat(messages=messages)).messages or ()) == 500


MANY = 100_000
"""With a complaint about each, the loop would stand still for seconds."""


@pytest.mark.parametrize(
    ("schema", "field", "wrong"),
    [
        (openai_completions.CompletionBody, "prompt", [1.5] * MANY),
        (openai_completions.CompletionBody, "prompt", [["a"]] * MANY),
        (openai_completions.CompletionBody, "prompt", [[1.5] * 10] * MANY),
        (openai_completions.CompletionBody, "stop", [1] * MANY),
        (openai_completions.CompletionBody, "logit_bias", dict.fromkeys(map(str, range(MANY)), "x")),
        (openai_chat.ChatBody, "messages", [{}] * MANY),
        (openai_chat.ChatBody, "messages", [{"role": "user", "content": [{}] * MANY}]),
        (openai_chat.ChatBody, "tools", [1] * MANY),
        (openai_embeddings.EmbeddingsBody, "input", [-1] * MANY),
        (openai_moderations.ModerationsBody, "input", [1] * MANY),
        (body_to_request.MessagesBody, "messages", [1] * MANY),
        (body_to_request.MessagesBody, "messages", [{"role": "user", "content": [{}] * MANY}]),
        (body_to_request.MessagesBody, "system", [1] * MANY),
        (body_to_request.MessagesBody, "tools", [1] * MANY),
        (body_to_request.MessagesBody, "stop_sequences", [1] * MANY),
    ],
)
def test_a_long_list_of_wrong_items_is_complained_of_once(
    schema: type[BaseModel], field: str, wrong: Any
) -> None:
    with pytest.raises(ValidationError) as refusal:
        schema.model_validate({field: wrong})
    assert refusal.value.error_count() < 20


@pytest.mark.parametrize("item", ["a", {"type": "text", "text": "a"}])
def test_of_a_list_too_long_its_length_is_told(item: Any) -> None:
    with pytest.raises(BadRequest, match="maximum length 2048") as refusal:
        openai_moderations.read_request(orjson.dumps({"input": [item] * 3000}))
    assert refusal.value.param == "input"


def test_an_integer_beyond_64_bits_is_refused_where_an_integer_is_due() -> None:
    for name in ("seed", "n", "max_tokens"):
        with pytest.raises(BadRequest) as refusal:
            openai_chat.read_request(chat(**{name: 1}).replace(b":1}", b":" + b"9" * 40 + b"}"))
        assert refusal.value.param == name


@pytest.mark.parametrize("wrong", [{"max_completion_tokens": "9"}, {"response_format": "json"}])
def test_what_the_gateway_reads_itself_is_checked_in_completions_too(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as refusal:
        openai_completions.read_request(completion(**wrong))
    assert refusal.value.param == next(iter(wrong))


NULLABLE = [name for name in openai_chat.ChatBody.model_fields if name not in ("model", "messages")]


@pytest.mark.parametrize("name", NULLABLE)
def test_null_stands_for_absent(name: str) -> None:
    request = openai_chat.read_request(chat(**{name: None}))
    assert (request.stream, request.n, request.include_usage) == (False, 1, False)


@pytest.mark.parametrize("name", ["echo", "logprobs", "best_of", "suffix", "stop", "n", "max_tokens"])
def test_null_stands_for_absent_in_completions_too(name: str) -> None:
    openai_completions.read_request(completion(**{name: None}))


@pytest.mark.parametrize(
    "message",
    [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {}}],
        },
        {"role": "assistant", "tool_calls": []},
        {"role": "tool", "content": "12:00", "tool_call_id": "1"},
        {"role": "function", "content": "12:00", "name": "get_time"},
        {"role": "developer", "content": "Be brief"},
        {"role": "system", "content": [{"type": "text", "text": "Be brief"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
        {"role": "user", "content": ""},
        {"role": "user", "content": "Hi", "name": "ann", "cache_control": {"type": "ephemeral"}},
    ],
)
def test_messages_arrive_as_they_were_written(message: dict[str, Any]) -> None:
    request = openai_chat.read_request(chat(messages=[message]))
    assert openai_chat.write_request(request, "m")["messages"] == (message,)


def test_whole_numbers_are_numbers() -> None:
    openai_chat.read_request(chat(temperature=1, top_p=1, presence_penalty=-2, logit_bias={"5": -100}))


PARAMS = {
    "temperature": 0.5,
    "top_p": 1,
    "stop": ["\n", "END"],
    "seed": 7,
    "logit_bias": {"50256": -100},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {"type": "json_object"},
    "logprobs": True,
    "top_logprobs": 3,
    "max_completion_tokens": 5,
    "user": "ann",
    "metadata": {"a": "b"},
    "new_parameter": {"deep": [1, None, {"x": 1.5}]},
    "top_k": 40,
}


def test_parameters_known_and_unknown_are_forwarded_untouched() -> None:
    sent = openai_chat.write_request(openai_chat.read_request(chat(**PARAMS)), "upstream-model")
    assert sent == {**PARAMS, "model": "upstream-model", "stream": False, "messages": tuple(CHAT["messages"])}


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8), json, max_size=4
    )
)
def test_unknown_parameters_survive_the_round_trip(fields: dict[str, Any]) -> None:
    known = {*openai_chat.ChatBody.model_fields, "prompt"}
    fields = {name: value for name, value in fields.items() if name not in known}
    body = orjson.dumps({**CHAT, **fields})
    sent = orjson.loads(orjson.dumps(openai_chat.write_request(openai_chat.read_request(body), "m")))
    # A second trip changes nothing more: what the gateway writes, a gateway behind it reads alike.
    again = orjson.loads(
        orjson.dumps(openai_chat.write_request(openai_chat.read_request(orjson.dumps(sent)), "m"))
    )
    assert sent == again == {**orjson.loads(body), "stream": False}


@pytest.mark.parametrize("prompt", ["Once", ["Once", "Twice"], [1, 2, 3], [[1, 2], [3]]], ids=repr)
def test_prompts_of_every_kind_are_forwarded(prompt: Any) -> None:
    request = openai_completions.read_request(completion(prompt=prompt, echo=True, suffix="."))
    assert request.messages is None
    assert openai_chat.write_request(request, "u") == {
        "model": "u",
        "prompt": prompt,
        "stream": False,
        "echo": True,
        "suffix": ".",
    }


def test_usage_is_always_asked_for_upstream() -> None:
    request = openai_chat.read_request(chat(stream=True))
    assert not request.include_usage
    assert openai_chat.write_request(request, "m")["stream_options"] == {"include_usage": True}


def test_other_stream_options_are_kept() -> None:
    options = {"include_usage": False, "include_obfuscation": False}
    request = openai_chat.read_request(chat(stream=True, stream_options=options))
    assert not request.include_usage
    assert openai_chat.write_request(request, "m")["stream_options"] == {**options, "include_usage": True}


def test_usage_is_not_asked_for_in_a_whole_answer() -> None:
    assert "stream_options" not in openai_chat.write_request(openai_chat.read_request(chat()), "m")


def test_several_choices_are_asked_for() -> None:
    assert openai_chat.write_request(openai_chat.read_request(chat(n=3)), "m")["n"] == 3
