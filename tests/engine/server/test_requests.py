from __future__ import annotations

import time
from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from engine.errors import InvalidRequest, UnsupportedParameter
from engine.server import body
from engine.server.body import read
from engine.server.fields import listed
from engine.server.requests import ChatBody, CompletionBody

USER = {"role": "user", "content": "hi"}
PARTIAL = {"role": "assistant", "content": "he"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]}
CONTINUE = {"continue_final_message": True}


def chat(**fields: Any) -> ChatBody:
    return read(ChatBody, orjson.dumps({"model": "m", "messages": [USER], **fields}))


def completion(**fields: Any) -> CompletionBody:
    return read(CompletionBody, orjson.dumps({"model": "m", "prompt": "hi", **fields}))


TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [USER, {"role": "robot", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        ({"messages": [5]}, "messages[0]"),
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_completion_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": -0.1}, "min_p"),
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"frequency_penalty": "1"}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty"),
        ({"repetition_penalty": 101}, "repetition_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"-5": 1}}, "logit_bias"),
        ({"logit_bias": {"05": 1}}, "logit_bias"),
        ({"logit_bias": {"٥": 1}}, "logit_bias"),
        ({"logit_bias": {"": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 1.0}, "min_tokens"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"stop_token_ids": 5}, "stop_token_ids"),
        ({"stop_token_ids": ["5"]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [5, -1]}, "stop_token_ids[1]"),
        ({"stop_token_ids": [5] * 129}, "stop_token_ids"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.0}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": {}}, "tools"),
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"continue_final_message": True}, "messages[0].role"),
        ({"messages": [USER, PARTIAL], **CONTINUE, "add_generation_prompt": True}, "continue_final_message"),
        ({"messages": [PARTIAL, USER], **CONTINUE}, "messages[1].role"),
        ({"messages": [USER, CALL], **CONTINUE}, "messages[1].content"),
        ({"messages": [USER, {**CALL, "content": "x"}], **CONTINUE}, "messages[1].tool_calls"),
        ({"response_format": {"type": "json_schema", "json_schema": 1}}, "response_format.json_schema"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"guided_choice": [""]}, "guided_choice[0]"),
        ({"tools": [{"type": "function", "function": {"name": 1}}]}, "tools[0]"),
        ({"tools": [{**TOOL, "function": {"name": "f", "parameters": 1}}]}, "tools[0].function.parameters"),
        ({"tools": [{**TOOL, "function": {"name": "f", "strict": "true"}}]}, "tools[0].function.strict"),
        (
            {"tools": [{**TOOL, "function": {"name": "f", "parameters": {"type": "string"}}}]},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{**TOOL, "function": {"name": "f", "parameters": {"type": ["null"] * 500}}}]},
            "tools[0].function.parameters",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
    ],
)
def test_a_wrong_value_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as found:
        chat(**fields)
    assert found.value.param == param
    assert found.value.code == "invalid_value"
    assert found.value.status == 400
    assert len(found.value.message) < 300


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"audio": {"voice": "alloy"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedParameter) as found:
        chat(**fields)
    assert found.value.param == param
    assert found.value.code == "unsupported_parameter"
    assert param.split(".")[-1].split("[")[0] in found.value.message or "text only" in found.value.message


def test_values_that_ask_for_nothing_are_as_good_as_none() -> None:
    body = chat(audio=None, modalities=["text"], functions=[], function_call="auto", use_beam_search=False)
    assert body.ignored == ["function_call", "functions", "modalities", "use_beam_search"]
    assert chat(stream=True, stream_options={"include_usage": True, "frobnicate": 1}).include_usage


def test_ignored_names_fit_a_header() -> None:
    names = ["ok", "no spaces", "näh", "x\r\ny: z", *(f"field_{i}" for i in range(1000))]
    text = listed(names)
    assert text.startswith("ok, field_0, field_1")
    assert len(text) < 250 and text.isascii() and text.isprintable()


def test_of_several_types_the_one_that_was_meant_is_complained_of() -> None:
    with pytest.raises(InvalidRequest, match="at most 16 items"):
        chat(stop=["a"] * 17)
    with pytest.raises(InvalidRequest, match="at least 1 character"):
        chat(stop="")


def test_a_missing_field_is_said_to_be_missing() -> None:
    with pytest.raises(InvalidRequest, match="'messages' is missing"):
        read(ChatBody, b'{"model": "m"}')
    with pytest.raises(InvalidRequest, match="'model' is missing"):
        read(CompletionBody, b'{"prompt": "m"}')


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"x"', b"null", b'{"model": NaN}', b"\xff\xfe"])
def test_what_is_not_a_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="JSON"):
        read(ChatBody, data)


def test_a_number_beyond_all_bounds_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        read(
            ChatBody, b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": 1e999}'
        )


def test_harmless_fields_and_explicit_nothings_pass() -> None:
    nothings = dict.fromkeys(
        [
            "max_tokens",
            "temperature",
            "stop",
            "n",
            "logprobs",
            "tools",
            "tool_choice",
            "response_format",
            "seed",
            "top_p",
            "top_k",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "logit_bias",
            "min_tokens",
            "ignore_eos",
            "stop_token_ids",
        ]
    )
    chat(**nothings)
    body = chat(
        user="u",
        metadata={"a": "b"},
        store=False,
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        logprobs=False,
        top_logprobs=0,
        response_format={"type": "text"},
        parallel_tool_calls=True,
        tool_choice="auto",
        temperature=1,
        max_completion_tokens=5,
    )
    assert body.temperature == 1.0


def test_biases_are_read_from_strings() -> None:
    assert chat(logit_bias={"50256": -100, "0": 0.5}).biases == ((50256, -100.0), (0, 0.5))
    assert chat().biases == ()


def test_the_bounds_themselves_are_allowed() -> None:
    body = completion(
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=0.01,
        logit_bias={str(token): 100 for token in range(1024)},
        min_p=1,
        top_k=-1,
        min_tokens=0,
        stop_token_ids=[0] * 128,
        n=3,
        best_of=3,
    )
    assert len(body.biases) == 1024


def test_templates_get_plain_texts_and_the_extra_fields() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = chat(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "42", "tool_call_id": "1"},
        ]
    )
    nulls = dict.fromkeys(("tool_calls", "refusal", "name", "reasoning_content"))
    assert chat(messages=[USER | nulls]).template_messages() == [USER]
    assert body.template_messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "42", "tool_call_id": "1"},
    ]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hi", ["hi"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        ("", [""]),
    ],
)
def test_prompts_come_in_four_forms(prompt: Any, expected: list[Any]) -> None:
    assert completion(prompt=prompt).prompts == expected


@pytest.mark.parametrize("prompt", [[], [[]], None, 5, [True], [1.0], ["a", 1], [[1], "a"], [[1, "a"]], {}])
def test_prompts_of_other_forms_are_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequest) as found:
        completion(prompt=prompt)
    assert found.value.param is not None
    assert found.value.param.startswith("prompt")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"prompt": ["a"] * 65, "n": 2}, "n"),
    ],
)
def test_completions_refuse_by_name_too(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as found:
        completion(**fields)
    assert found.value.param == param


@pytest.mark.parametrize(
    ("kind", "field", "wrong"),
    [(ChatBody, "messages", 5), (CompletionBody, "prompt", 1.5), (CompletionBody, "prompt", [1.5])],
)
def test_a_body_full_of_mistakes_is_refused_at_the_first(kind: Any, field: str, wrong: Any) -> None:
    data = orjson.dumps({"model": "m", field: [wrong] * 300_000})
    began = time.thread_time()
    with pytest.raises(InvalidRequest) as found:
        read(kind, data)
    # A tenth of a second by itself, half of one among other tests' objects; to list all mistakes takes three.
    assert time.thread_time() - began < 1.5
    assert found.value.param is not None
    assert found.value.param.startswith(field)


def test_nesting_without_end_is_not_json() -> None:
    with pytest.raises(InvalidRequest, match="JSON"):
        read(ChatBody, b'{"model": ' + b"[" * 100_000)


MANY = 100_000


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [USER] * MANY}, "messages"),
        ({"messages": [{}] * MANY}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [1] * MANY}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * MANY}]},
            "messages[0].content",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [1] * MANY}]}, "messages[0].tool_calls[0]"),
        ({"tools": [1] * MANY}, "tools[0]"),
        ({"tools": [TOOL] * MANY}, "tools"),
        ({"guided_choice": [1] * MANY}, "guided_choice[0]"),
        ({"guided_choice": ["a"] * MANY}, "guided_choice"),
        ({"structured_outputs": {"choice": [1] * MANY}}, "structured_outputs.choice[0]"),
        ({"stop": [1] * MANY}, "stop[0]"),
        ({"stop_token_ids": ["a"] * MANY}, "stop_token_ids[0]"),
        ({"logit_bias": {str(i): "a" for i in range(MANY)}}, "logit_bias"),
        ({f"x{i}": 1 for i in range(MANY)}, None),
    ],
)
def test_many_mistakes_are_as_cheap_as_one(
    fields: dict[str, Any], param: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pydantic makes an object of each that it finds: no more than a few are to be found."""
    found: list[int] = []
    reported = body._from_pydantic

    def count(error: ValidationError) -> InvalidRequest:
        found.append(error.error_count())
        return reported(error)

    monkeypatch.setattr(body, "_from_pydantic", count)
    with pytest.raises(InvalidRequest) as refused:
        chat(**fields)
    assert refused.value.param == param
    assert sum(found) <= 4
