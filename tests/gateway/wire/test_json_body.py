"""How much structure a body may have: each limit by itself, at its border, whatever the dialect."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from gateway.errors import BadRequest
from gateway.policy.schema.limits import RequestLimits
from gateway.wire import json_body
from gateway.wire.apis import score, tokens
from gateway.wire.openai import chat as openai_chat
from gateway.wire.openai import completions as openai_completions

TEXT = {"type": "text", "text": "a"}


def said(**fields: Any) -> bytes:
    return orjson.dumps({"model": "m", **fields})


@pytest.mark.parametrize(
    ("limit", "field", "most"),
    [
        ("messages", "messages", [{"role": "user", "content": "a"}] * 5),
        ("parts", "messages", [{"role": "user", "content": [TEXT] * 3}, {"content": [TEXT] * 2}]),
        ("tools", "tools", [{}] * 5),
        ("tools", "functions", [{}] * 5),
        ("stop", "stop", ["a"] * 5),
        ("stop", "stop_sequences", ["a"] * 5),
        ("prompts", "prompt", ["a"] * 5),
        ("prompts", "prompt", [[1, 2]] * 5),
        ("prompts", "input", ["a"] * 5),
    ],
)
def test_a_list_may_be_as_long_as_the_policy_says(limit: str, field: str, most: list[Any]) -> None:
    data = said(**{field: most})
    json_body.read_json(data, RequestLimits(**{limit: 5}))
    with pytest.raises(BadRequest, match="array with maximum length 4, but got an array with length 5") as it:
        json_body.read_json(data, RequestLimits(**{limit: 4}))
    assert it.value.code == "array_above_max_length"
    assert str(it.value.param).startswith(field)


@pytest.mark.parametrize("several", [{"n": 3}, {"best_of": 3}, {"n": 2, "best_of": 3}])
def test_answers_of_one_request(several: dict[str, int]) -> None:
    data = said(prompt=["a", "b"], **several)
    assert openai_completions.read_request(data, RequestLimits(answers=6)).answers == 6
    with pytest.raises(BadRequest, match="asks for 6 answers at once, and this gateway takes 5") as caught:
        openai_completions.read_request(data, RequestLimits(answers=5))
    assert (caught.value.code, caught.value.param) == ("too_many_answers", "prompt")
    chat = said(messages=[{"role": "user", "content": "a"}], n=3)
    assert openai_chat.read_request(chat, RequestLimits(answers=3)).n == 3
    with pytest.raises(BadRequest, match="a smaller 'n'"):
        openai_chat.read_request(chat, RequestLimits(answers=2))


def test_a_prompt_of_token_ids_is_one_prompt() -> None:
    json_body.read_json(said(prompt=[1] * 100), RequestLimits(prompts=1))
    with pytest.raises(BadRequest, match="102 entries of lists and objects, and this gateway takes 101"):
        json_body.read_json(said(prompt=[1] * 101), RequestLimits(entries=101))
    json_body.read_json(said(prompt=[1] * 100), RequestLimits(entries=101))


@pytest.mark.parametrize("value", [{}, [], "a", [[]], {"a": "b"}])
def test_values_are_counted_before_they_are_made(value: Any) -> None:
    data = said(unknown=[value] * 100)
    with pytest.raises(BadRequest, match="texts, names, lists and objects, and this gateway takes 100"):
        json_body.read_json(data, RequestLimits(values=100))
    json_body.read_json(data, RequestLimits(values=1000))


@pytest.mark.parametrize("text", ['{["",]}' * 1000, "\\" * 999, '\\"' * 1000, "\n" * 1000, "[\u2028" * 1000])
def test_signs_within_texts_are_no_values(text: str) -> None:
    data = said(messages=[{"role": "user", "content": text}])
    assert json_body.read_json(data, RequestLimits(values=20, entries=20))["messages"][0]["content"] == text


def test_depth() -> None:
    data = said(x=1).replace(b":1", b":" + b"[" * 19 + b"]" * 19)
    json_body.read_json(data, RequestLimits(depth=20))
    with pytest.raises(BadRequest, match="more than 19 levels deep"):
        json_body.read_json(data, RequestLimits(depth=19))


@pytest.mark.parametrize("data", [b'{"a": "', b'"' * 99, b'{"a": "\\', b"[" * 99, b'{"a": "\\"}' + b"," * 99])
def test_what_is_no_json_is_refused_as_such_or_as_too_much(data: bytes) -> None:
    with pytest.raises(BadRequest):
        json_body.read_json(data, RequestLimits(values=20, entries=20))


@pytest.mark.parametrize("depth", [8, 9])
@pytest.mark.parametrize("bracket", ["[", '{"a":'])
def test_brackets_within_texts_are_no_depth(depth: int, bracket: str) -> None:
    closing = "]" if bracket == "[" else "}"
    nested = '{"a":' * (depth > 1) + bracket * (depth - 1) + "1" + closing * (depth - 1) + "}" * (depth > 1)
    value = orjson.loads(nested)
    assert json_body.is_too_deep(nested.encode(), value, 8) is (depth > 8)
    text = {"a": "[{" * 100}
    assert not json_body.is_too_deep(orjson.dumps(text), text, 8)


def test_a_body_of_fewer_bytes_than_values_is_not_counted() -> None:
    limits = RequestLimits(values=100, entries=100)
    assert json_body.read_json(b'{"a":[' + b"[]," * 20 + b"[]]}", limits)
    with pytest.raises(BadRequest, match="texts, names, lists and objects"):
        json_body.read_json(b'{"a":[' + b"[]," * 100 + b"[]]}", limits)


def test_what_is_wrong_with_a_body_as_a_whole_names_no_field() -> None:
    with pytest.raises(
        BadRequest, match=r"^Invalid request: send either 'prompt' or 'messages'\.$"
    ) as refused:
        tokens.read_tokenize(b'{"model": "m"}')
    assert refused.value.param is None


@pytest.mark.parametrize(
    ("fields", "said_of_it"),
    [
        ({"text_1": 5}, "'text_1': Input should be a valid string or list (got 5)"),
        ({"text_1": ["a", 5]}, "'text_1[1]': Input should be a valid string (got 5)"),
        ({"text_1": "a", "text_2": {}}, "'text_2': Input should be a valid string or list."),
    ],
)
def test_a_value_of_a_wrong_type_is_told_of_all_that_it_may_have(
    fields: dict[str, Any], said_of_it: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        score.read_request(said(**{"text_2": "a", **fields}))
    assert said_of_it in refused.value.message
